"""One rank of several that train one model by SubspaceAdamW; see test_subspace_ranks.py."""

from __future__ import annotations

import hashlib

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


def rows_of(rank, ranks):
    """Rows of a rank; those of all ranks are the first rows of a batch."""
    return slice(ROWS * rank, ROWS * (rank + 1)) if ranks > 1 else slice(0, ROWS * rank)


def train(model, opt, rows, steps=STEPS, micro=1, clip=None, expert_of=lambda number: 0):
    """Train on rows of every batch, and return the losses."""
    losses = []
    for step in range(steps):
        for k in range(micro):
            number = micro * step + k
            loss = loss_on(model, rows, number, expert_of(number)) / micro
            loss.backward()
            losses.append(loss.item())
        if clip == "torch":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        elif clip == "ours":
            opt.clip_grad_norm_(0.5)
        opt.step()
        opt.zero_grad()
    opt.synchronize()
    return losses


def together(codec, steps=STEPS, micro=1, clip=None, expert_of=lambda number: 0, **more):
    """Train on this rank's rows; return its losses, and what the weights are at the end."""
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS[codec], **more) as opt:
        rows = rows_of(here.rank, here.ranks)
        losses = train(model, opt, rows, steps, micro, clip, expert_of)
        stats = opt.stats()
    torch.save(model.state_dict(), here.folder / f"{here.case}.{here.rank}.pt")
    return [losses, bits(model), stats["ranks"], stats["skipped_steps"]]


def identity():
    return together("identity")


def identity_accumulated():
    return together("identity", micro=3, clip="torch", accumulate=3)


def identity_of_any_number():
    return together("identity", micro=3, clip="ours")


def identity_clipped_inside():
    return together("identity", max_norm=0.5)


def wrapped_later():
    """A DDP that is made after the optimizer leaves its weights alone."""
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"]) as opt:
        ddp = DistributedDataParallel(model)
        losses = train(ddp, opt, rows_of(here.rank, here.ranks))
        stats = opt.stats()
    torch.save(model.state_dict(), here.folder / f"{here.case}.{here.rank}.pt")
    return [losses, bits(model), stats["ranks"], stats["skipped_steps"]]


def residual_alone():
    return together("default", clip="torch")


def cores():
    return together("block_random", 100)


def cores_and_residual():
    return together("residual", micro=2, accumulate=2)


def fitted():
    return together("svd")


def expert_of_one_rank():
    """Use on rank 1 in odd batches another expert, whose weight has no gradient on rank 0."""
    return together("identity", expert_of=lambda number: number * here.rank % 2)


def skipped_step():
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"], loss_scale=8.0) as opt:
        for step in range(3):
            loss = opt.scale_loss(loss_on(model, rows_of(here.rank, here.ranks), step))
            (loss * (float("inf") if (step, here.rank) == (1, 1) else 1.0)).backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        return [opt.skipped_steps, bits(model)]


def clipped_on_one_rank():
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS["identity"]) as opt:
        loss_on(model, rows_of(here.rank, here.ranks), 0).backward()
        if here.rank == 1:
            model.inner.weight.grad.mul_(0.5)
        opt.step()


def other_rate():
    here.meet()
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3 * (1 + here.rank), **CODECS["identity"]) as opt:
        loss_on(model, rows_of(here.rank, here.ranks), 0).backward()
        opt.step()


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
        loss_on(model, rows_of(here.rank, here.ranks), 0).backward()
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
    here.run_cases(globals())
