"""Cores of fused layers are those of the gradients that autograd forms beside them."""

from __future__ import annotations

import functools

import pytest
import sluiceway as sw
import torch
from sluiceway.optim.subspace.fused.sampled_bias import SampledBias
from small_models import (
    WIDTH,
    Checkpointed,
    CheckpointedReentrant,
    Stack,
    Tied,
    batch,
    loss_of,
    make,
    update_error,
)
from torch import nn
from torch.nn import functional
from twins import LR, train

# Of a core, relative to its norm.
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


class Odd(nn.Module):
    """Layers of odd sizes, one of them called twice, on inputs of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 67)
        self.twice = nn.Linear(67, 67)
        self.leave = nn.Linear(67, 41, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x).view(3, -1, 67)
        x = self.twice(functional.gelu(self.twice(x)))
        return self.leave(x.transpose(0, 1)).reshape(-1, 41)[:, :8]


class Convolved(nn.Module):
    """transformers' Conv1D, whose weight is [in, out]."""

    def __init__(self) -> None:
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        self.enter = nn.Linear(16, 96)
        self.up = Conv1D(131, 96)
        self.down = Conv1D(96, 131)
        with torch.no_grad():
            self.up.weight.mul_(10)
            self.down.weight.mul_(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(self.enter(x))))[:, :8]


class Penalised(Stack):
    """The loss reads a weight beside its layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 30 * self.blocks[0].up.weight.square().mean()


def fused(model: nn.Module, **arguments: object) -> sw.SubspaceAdamW:
    arguments = {"codec": "block_random", "ratio": 0.5, "wire": "fp32", **arguments}
    return sw.SubspaceAdamW(model, lr=LR, fused=True, **arguments)


def hooked(model: nn.Module, **arguments: object) -> sw.SubspaceAdamW:
    arguments = {"codec": "block_random", "ratio": 0.5, "wire": "fp32", **arguments}
    return sw.SubspaceAdamW(model, lr=LR, **{"residual": "none", **arguments})


def recorded(opt: sw.SubspaceAdamW) -> dict[str, torch.Tensor]:
    """Sums of the cores that layers hand over from now on, by the name of the weight."""
    sums: dict[str, torch.Tensor] = {}
    take = opt.add_core

    def add_core(weight: int, core: torch.Tensor, whole: bool) -> None:
        name = opt.weights[weight].name
        sums[name] = core.double() + sums.get(name, 0)
        take(weight, core, whole)

    opt.add_core = add_core
    return sums


def core_of(opt: sw.SubspaceAdamW, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """P^T G Q in double; P and Q are what the identity matrix is projected to."""
    number = [weight.name for weight in opt.weights].index(name)
    described = opt.engine.describe(number)
    scratch = torch.empty(described["project_scratch_elems"])

    def side(which: str, rows: int, columns: int) -> torch.Tensor:
        out = torch.empty(rows, columns)
        opt.engine.project(number, which, torch.eye(rows), out, scratch, opt.device.compute())
        return out.double()

    p = side("p", gradient.shape[0], described["core_rows"])
    q = side("q", gradient.shape[1], described["core_cols"])
    return p.t() @ gradient.double() @ q


def autocast_loss(model: nn.Module, step: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    with torch.autocast("cpu", dtype=dtype):
        return loss_of(model, step)


def core_errors(
    kind: type[nn.Module], dtype: torch.dtype, backwards: int = 1, **arguments: object
) -> dict[str, float]:
    """Relative error of each fused weight's core, of the gradients of so many backwards."""
    loss = loss_of if dtype == torch.float32 else functools.partial(autocast_loss, dtype=dtype)
    model, plain = make(kind), make(kind)
    with fused(model, **arguments) as opt:
        found = recorded(opt)
        for step in range(backwards):
            loss(model, step).backward()
            loss(plain, step).backward()
        expected = {n: core_of(opt, n, plain.get_parameter(n).grad) for n in found}
        assert set(found) == set(opt.fused_linears.names)
        return {n: float((found[n] - e).norm() / e.norm()) for n, e in expected.items()}


EVERY = {"target": r"(twice|leave|up|down|enter)\.weight"}  # Small ones, too.


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(
    ("kind", "count", "arguments"),
    [
        (Stack, 4, {}),
        (Stack, 4, {"codec": "sparse_random"}),
        (Stack, 4, {"codec": "sparse_random", "d": 93, "nnz": 3}),
        (Checkpointed, 4, {}),
        (CheckpointedReentrant, 4, {}),
        (Odd, 3, EVERY),
        (Odd, 3, EVERY | {"block": 29, "ratio": 0.3}),
        (Odd, 3, EVERY | {"codec": "sparse_random", "ratio": 0.3}),
        (Convolved, 3, EVERY),
    ],
)
def test_a_core_is_that_of_the_gradient(kind, count, arguments, dtype):
    errors = core_errors(kind, dtype, **arguments)
    assert len(errors) == count
    assert max(errors.values()) < ROUNDING[dtype], errors


@pytest.mark.parametrize("kind", [Stack, Checkpointed])
def test_cores_of_several_backwards_add_up(kind):
    assert max(core_errors(kind, torch.float32, backwards=3).values()) < ROUNDING[torch.float32]


def test_a_fused_model_computes_what_it_did():
    model, plain = make(), make()
    x, _ = batch(0)
    with fused(model):
        out, expected = model(x), plain(x)
        assert torch.equal(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
    for name in ("enter.weight", "enter.bias", "blocks.0.up.bias", "blocks.1.norm.weight"):
        assert torch.equal(model.get_parameter(name).grad, plain.get_parameter(name).grad), name


def updates_of(
    make_optimizer, kind=Stack, steps=10, micro_batches=1, loss=loss_of, **arguments
) -> nn.Module:
    model = make(kind)
    with make_optimizer(model, **arguments) as opt:
        train(model, opt, steps, loss=loss, micro_batches=micro_batches)
    return model


def disagreement(kind=Stack, **arguments) -> float:
    """Difference between the updates of a whole run with fused layers and with hooks."""
    ours = updates_of(fused, kind, **arguments)
    return update_error(make(kind), ours, updates_of(hooked, kind, **arguments))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Stack, {}),
        (Stack, {"micro_batches": 3}),
        (Stack, {"micro_batches": 2, "accumulate": 2}),
        (Stack, {"max_norm": 0.05}),
        (Stack, {"norm_mode": "speculative", "link": sw.Link(0.05, 0.05)}),
        (Stack, {"tier": "device"}),
        (Stack, {"codec": "svd"}),
        (Stack, {"residual": "factored", "residual_every": 2}),
        (Stack, {"residual": "factored", "residual_every": 3, "accumulate": 1}),
        (Checkpointed, {}),
        (CheckpointedReentrant, {}),
        (Tied, {}),
        (Penalised, {"micro_batches": 2, "accumulate": 2}),
        (Odd, EVERY),
        (Convolved, EVERY),
    ],
)
def test_a_run_agrees_with_hooks(kind, arguments):
    assert disagreement(kind, **arguments) < 1e-3


def test_a_run_under_autocast_agrees_within_the_rounding_of_bf16():
    assert disagreement(loss=autocast_loss) < 0.1


def test_a_skipped_step_changes_nothing_and_the_next_one_counts():
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        return loss_of(model, step) * (float("inf") if step == 2 else 1.0)

    model = make()
    with fused(model) as opt:
        train(model, opt, 2, loss=loss)
        opt.synchronize()
        before = [p.detach().clone() for p in model.parameters()]
        train(model, opt, 1, loss=loss, first=2)
        assert opt.overflowed
        opt.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert disagreement(loss=loss) < 1e-3


def test_the_norms_are_those_that_hooks_give():
    model, twin = make(), make()
    with fused(model) as opt, hooked(twin) as other:
        for one in (model, twin):
            loss_of(one, 0).backward()
        norms = [
            float(torch.nn.utils.clip_grad_norm_(one.parameters(), 1e-3)) for one in (model, twin)
        ]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        for ours, theirs in zip(opt.weights, other.weights, strict=True):
            norm = float(theirs.parameter.grad.norm())
            assert float(ours.parameter.grad.norm()) == pytest.approx(norm, rel=1e-5)
        opt.step()
        other.step()


def test_a_grad_scaler_scales_and_skips_as_with_hooks():
    def run(make_optimizer) -> nn.Module:
        model = make()
        with make_optimizer(model) as opt:
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
            for step in range(6):
                scaler.scale(loss_of(model, step)).backward()
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        return model

    assert update_error(make(), run(fused), run(hooked)) < 1e-3


def test_a_layer_keeps_its_projected_input_in_place_of_its_input(monkeypatch):
    # But for some tokens, in a step that measures its bias.
    monkeypatch.setattr(SampledBias, "due", lambda self, place, step: False)

    def saved_bytes(model: nn.Module) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, nn.Parameter) and tensor._base is None:
                storages[tensor.untyped_storage().data_ptr()] = tensor.nbytes
                kept.append(tensor)
            return tensor

        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = layer(x).sum()
        del loss
        return sum(storages.values())

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    x = torch.randn(40, WIDTH).requires_grad_()
    layer = make(One)
    whole = saved_bytes(layer)
    with fused(layer):
        assert saved_bytes(layer) == 40 * WIDTH // 2 * 4
    x = x.detach().clone()  # Not a leaf that autograd keeps anyway.
    assert whole <= 40 * WIDTH * 4
