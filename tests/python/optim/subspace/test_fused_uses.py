"""Fused layers are used several times in a backward, on no rows, with outputs that are changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_models import make, update_error
from test_fused import ROUNDING, Convolved, core_of, fused, hooked, recorded, updates_of
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

IN, WIDTH = 67, 131
EVERY = {"target": r"(up|down)\.weight", "ratio": 0.4}
NAMES = {"up.weight", "down.weight"}
Use = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Pair(nn.Module):
    """Two layers of odd sizes; the one behind gets the first gradient of a backward."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(IN, WIDTH, bias=bias)
        self.down = nn.Linear(WIDTH, IN, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def rows(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(*shape, IN, generator=torch.Generator().manual_seed(seed))


def worst_error(use: Use, x: torch.Tensor, **arguments: object) -> float:
    """Return the relative error of cores and biases, beside a plain model with the same `use`."""
    model, plain = make(Pair, **arguments), make(Pair, **arguments)
    with fused(model, **EVERY) as opt:
        found = recorded(opt)
        use(model, x).backward()
        use(plain, x).backward()
        assert set(found) == NAMES
        pairs = [(found[n], core_of(opt, n, plain.get_parameter(n).grad)) for n in NAMES]
    for name, parameter in plain.named_parameters():
        if name not in NAMES:
            pairs.append((model.get_parameter(name).grad, parameter.grad))
    return max(float((ours - true).norm() / (true.norm() + 1e-12)) for ours, true in pairs)


def disagreement(loss: Callable[[nn.Module, int], torch.Tensor], kind=Pair, **changes) -> float:
    """Return the relative difference of a run's updates with fused layers and with hooks."""
    arguments = {"steps": 4, "loss": loss, **EVERY, **changes}
    ours, theirs = (updates_of(which, kind, **arguments) for which in (fused, hooked))
    return update_error(make(kind), ours, theirs)


# ---- Several uses in one backward ----


def preference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    chosen, rejected = model(x).square().mean(), model(x.flip(0) * 0.7).square().mean()
    return -functional.logsigmoid(rejected - chosen)


def recurrence(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x)
    for _ in range(4):
        state = torch.tanh(model(x + state))
    return state.square().mean()


def head_of_three_losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(model.up(x))
    losses = [model.down(hidden * scale).square().mean() for scale in (1.0, -0.5, 2.0)]
    return sum(losses)


def around_an_inner_backward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(checkpoint(model, model(x), use_reentrant=True)).square().mean()


def checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(preference, model, x, use_reentrant=False)


USES = {
    "preference": preference,
    "recurrence": recurrence,
    "head": head_of_three_losses,
    "inner-backward": around_an_inner_backward,
    "checkpointed": checkpointed,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_use_of_a_backward_counts(use):
    assert worst_error(use, rows(9)) < ROUNDING[torch.float32]


def test_uses_of_a_layer_and_of_an_operation_add_up():
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        x = rows(9, seed=step)
        return preference(model, x) + functional.linear(x, model.up.weight).square().mean()

    assert disagreement(loss) < 1e-3


# ---- No rows ----

EMPTY = {"2-D": (0,), "3-D": (0, 4), "3-D-inner": (3, 0), "4-D": (2, 0, 3)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY.keys())
def test_no_rows_add_nothing(shape, bias):
    def beside_rows(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(rows(*shape)).sum() + model(x).square().mean()

    def an_expert_without_tokens(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_ones(len(x), WIDTH)
        hidden = hidden + model.up(rows(*shape)).reshape(-1, WIDTH).sum(0)
        return model.down(hidden * x[:, :1]).square().mean()

    assert worst_error(beside_rows, rows(2, 5), bias=bias) < ROUNDING[torch.float32]
    assert worst_error(an_expert_without_tokens, rows(5), bias=bias) < ROUNDING[torch.float32]


@pytest.mark.parametrize("kind", [Pair, Convolved])
@pytest.mark.parametrize("share_inputs", [False, True])
def test_an_empty_batch_is_a_step_with_a_gradient_of_zeros(kind, share_inputs):
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        x = rows(2, 3, seed=step)[..., : IN if kind is Pair else 16]
        return model(x[:0] if step == 2 else x).square().sum()

    assert disagreement(loss, kind, share_inputs=share_inputs) < 1e-3


# ---- Outputs that are changed, and graphs of gradients ----


def masked(y: torch.Tensor) -> torch.Tensor:
    y[..., :3] = 0
    return y


def gated(y: torch.Tensor) -> torch.Tensor:
    left, right = y.tensor_split(2, dim=-1)
    left.mul_(right.detach().mean())
    return y


CHANGES = {
    "relu": functional.relu_,
    "added": lambda y: y.add_(y.detach().flip(0)),
    "masked": masked,
    "scaled": lambda y: y.mul_(0.5),
    "by-a-view": gated,
    "filled": lambda y: y.masked_fill_(y.detach() > 0.3, 0.0),
}


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 5)], ids=["3-D", "4-D"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_output_may_be_changed_in_place(change, shape):
    def use(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return change(model.down(torch.tanh(change(model.up(x))))).square().mean()

    assert worst_error(use, rows(*shape)) < ROUNDING[torch.float32]


def test_an_output_of_conv1d_may_be_changed_in_place():
    model = make(Convolved)
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(9))
    plain = make(Convolved)
    with fused(model, **EVERY):
        for one in (model, plain):
            one.down(masked(one.up(one.enter(x)))).square().mean().backward()
    assert torch.allclose(model.enter.weight.grad, plain.enter.weight.grad, atol=1e-6)


LOSSES = {
    "square": lambda y: y.square().mean(),
    "linear": lambda y: (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum(),
}


@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=["2-D", "3-D"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_a_gradient_penalty_trains_as_with_hooks(loss, shape):
    # The output's gradient may be a constant: the input's depends on the weights all the same.
    def penalised(model: nn.Module, step: int) -> torch.Tensor:
        x = rows(*shape, seed=step).requires_grad_()
        y = loss(model(x))
        (dx,) = torch.autograd.grad(y, x, create_graph=True)
        return y + 10 * dx.square().sum()

    assert disagreement(penalised) < 1e-3


def test_a_layer_takes_its_input_by_name():
    use = lambda model, x: model.down(input=model.up(input=x)).sum()  # noqa: E731
    model, plain = make(Pair), make(Pair)
    with fused(model, **EVERY):
        assert torch.equal(use(model, rows(3)), use(plain, rows(3)))
