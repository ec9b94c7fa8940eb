"""One rank of several that train one model by SubspaceAdamW; see test_subspace_ranks.py."""

from __future__ import annotations

import copy
import hashlib
from functools import partial

import sluiceway as sw
import torch
from rank_jobs import ThisRank
from sluiceway.errors import Error
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
ROWS = 2  # Of a rank in a micro-batch.
CODECS = {
    "identity": {"codec": "identity", "wire": "fp32"},
    "default": {},
    "block_random": {"codec": "block_random", "ratio": 0.5, "residual": "none"},
    "residual": {"codec": "block_random", "ratio": 0.25},
    "svd": {"codec": "svd", "ratio": 0.25},
}


class Layers(nn.Module):
    """Tied matrices, a bias, and two experts of which each row takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 256)
        self.norm = nn.LayerNorm(256)
        self.inner = nn.Linear(256, 256)
        self.experts = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.head = nn.Linear(256, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, expert: int) -> torch.Tensor:
        x = functional.gelu(self.inner(self.norm(self.embed(ids))))
        return self.head(self.experts[expert](x))


def layers():
    torch.manual_seed(3)
    return Layers()


def loss_on(model, rows, number, expert=0):
    """Mean loss on some rows of batch `number`."""
    ids = torch.randint(0, 256, (64, 8), generator=torch.Generator().manual_seed(number))[rows]
    return functional.cross_entropy(model(ids, expert).flatten(0, 1), (ids * 7 % 256).flatten())


def bits(model):
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def rows_of(rank):
    """Rows of a rank in every batch."""
    return slice(ROWS * rank, ROWS * (rank + 1))


def train(model, opt, ranks, steps=STEPS, micro=(1,), clip=None, experts=1):
    """Train on the rows of some ranks, and return the losses.

    Step k has `micro[k]` micro-batches, or `micro[-1]` from the end of the list on. With two
    experts, rank 1 uses the second one in odd micro-batches.
    """
    losses, number = [], 0
    for step in range(steps):
        parts = micro[min(step, len(micro) - 1)]
        for _ in range(parts):
            each = [loss_on(model, rows_of(k), number, number * k % experts) for k in ranks]
            loss = torch.stack(each).mean() / parts
            loss.backward()
            losses.append(loss.item())
            number += 1
        if clip == "torch":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        elif clip == "ours":
            opt.clip_grad_norm_(0.5)
        opt.step()
        opt.zero_grad()
    opt.synchronize()
    return losses


def together(codec, train_more=(), **more):
    """Train on this rank's rows; return its losses, and what the weights are at the end."""
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS[codec], **more) as opt:
        losses = train(model, opt, [here.rank], **dict(train_more))
        stats = opt.stats()
    torch.save(model.state_dict(), here.folder / f"{here.case}.{here.rank}.pt")
    return [losses, bits(model), stats["ranks"], stats["skipped_steps"]]


# What `train` does in each case, codec, and options, for these ranks and for one process.
EQUAL = {
    "identity": ({}, "identity", {}),
    "identity_accumulated": ({"micro": [3], "clip": "torch"}, "identity", {"accumulate": 3}),
    "identity_short_step": (
        {"micro": [3, 3, 2, 3], "clip": "torch"}, "identity", {"accumulate": 3},
    ),
    "identity_of_any_number": ({"micro": [3, 1, 2], "clip": "ours"}, "identity", {}),
    "identity_clipped_inside": ({}, "identity", {"max_norm": 0.5}),
    "residual_alone": ({"clip": "torch"}, "default", {}),
    "cores_and_residual": ({"micro": [2]}, "residual", {"accumulate": 2}),
    "residual_in_turns": ({}, "residual", {"residual_every": 2}),
    "expert_of_one_rank": ({"experts": 2}, "identity", {}),
}  # fmt: skip


def wrapped_later(**more):
    """Make a DDP after the optimizer, whose weights it leaves alone."""
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"]) as opt:
        ddp = DistributedDataParallel(model, **more)
        losses = train(ddp, opt, [here.rank])
        stats = opt.stats()
    torch.save(model.state_dict(), here.folder / f"{here.case}.{here.rank}.pt")
    return [losses, bits(model), stats["ranks"], stats["skipped_steps"]]


def wrapped_with_views():
    return wrapped_later(gradient_as_bucket_view=True)


def other_optimizers():
    """Train a part by another optimizer, and then all by torch's; a DDP averages for these."""
    here.meet()
    model = layers()
    part = [model.inner.weight, model.norm.weight]
    others = [p for p in model.parameters() if all(p is not q for q in part)]
    opt = sw.SubspaceAdamW(
        model, lr=1e-3, param_groups=[{"params": part}], **CODECS["identity"]
    )  # fmt: skip
    torchs = torch.optim.SGD(others, lr=0.1)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(3):
        loss_on(ddp, rows_of(here.rank), step).backward()
        for one in (opt, torchs):
            one.step()
            one.zero_grad()
    opt.close()
    together_weights = bits(model)
    adam = torch.optim.AdamW(model.parameters())
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(3):
        loss_on(ddp, rows_of(here.rank), step).backward()
        adam.step()
        adam.zero_grad()
    return [together_weights, bits(model)]


def cores():
    return together("block_random", {"steps": 100})


def fitted():
    return together("svd")


def scaled():
    """Let a GradScaler skip the step in which a gradient of rank 1 is infinite."""
    here.meet()
    model, scaler = layers(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"]) as opt:
        for step in range(3):
            loss = scaler.scale(loss_on(model, rows_of(here.rank), step))
            (loss * (float("inf") if (step, here.rank) == (1, 1) else 1.0)).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        opt.synchronize()
        return [scaler.get_scale(), bits(model)]


def continued():
    """Go on in a new optimizer from a state, and tell whether the bits are the same."""
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["residual"]) as opt:
        train(model, opt, [here.rank], 3)
        state, weights = copy.deepcopy(opt.state_dict()), copy.deepcopy(model.state_dict())
        train(model, opt, [here.rank], 3)
    other = layers()
    other.load_state_dict(weights)
    with sw.SubspaceAdamW(other, lr=1e-3, **CODECS["residual"]) as opt:
        opt.load_state_dict(state)
        train(other, opt, [here.rank], 3)
    return [bits(other) == bits(model), bits(model)]


def skipped_step():
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"], loss_scale=8.0) as opt:
        for step in range(3):
            loss = opt.scale_loss(loss_on(model, rows_of(here.rank), step))
            (loss * (float("inf") if (step, here.rank) == (1, 1) else 1.0)).backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        return [opt.skipped_steps, bits(model)]


def clipped_on_one_rank():
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"]) as opt:
        loss_on(model, rows_of(here.rank), 0).backward()
        if here.rank == 1:
            model.inner.weight.grad.mul_(0.5)
        opt.step()


def other_rate():
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3 * (1 + here.rank), **CODECS["identity"]) as opt:
        loss_on(model, rows_of(here.rank), 0).backward()
        opt.step()


def rates_swapped():
    """Give two groups rates of the same sum."""
    here.meet()
    model = layers()
    vectors = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rates = [1e-3, 2e-3] if here.rank == 0 else [2e-3, 1e-3]
    groups = [
        {"params": params, "lr": lr} for params, lr in zip([matrices, vectors], rates, strict=True)
    ]
    with sw.SubspaceAdamW(model, param_groups=groups, **CODECS["identity"]) as opt:
        train(model, opt, [here.rank], 1)


def other_betas():
    here.meet()
    model = layers()
    betas = (0.9, 0.99 if here.rank else 0.999)
    with sw.SubspaceAdamW(model, betas=betas, **CODECS["identity"]) as opt:
        train(model, opt, [here.rank], 1)


def frozen_on_one_rank():
    here.meet()
    model = layers()
    model.inner.weight.requires_grad_(here.rank == 0)
    sw.SubspaceAdamW(model)


def other_weights():
    here.meet()
    model = layers()
    if here.rank == 1:
        with torch.no_grad():
            model.inner.bias[3] += 1
    sw.SubspaceAdamW(model)


def other_options():
    here.meet()
    sw.SubspaceAdamW(layers(), codec="block_random", ratio=0.5 if here.rank else 0.25)


def one_fails():
    """Put a gradient on rank 1 that `step()` refuses; nothing is trained anywhere."""
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"]) as opt:
        before = bits(model)
        loss_on(model, rows_of(here.rank), 0).backward()
        if here.rank == 1:
            model.norm.weight.grad = torch.zeros(256).to_sparse()
        try:
            opt.step()
            said = "no error"
        except Error as error:
            said = f"{type(error).__name__}: {error}"
        assert bits(model) == before, "weights have changed"
        return said


if __name__ == "__main__":
    here = ThisRank()
    equal = {case: partial(together, codec, more, **options)
             for case, (more, codec, options) in EQUAL.items()}  # fmt: skip
    here.run_cases(globals() | equal)
