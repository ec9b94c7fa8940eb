"""Models under torch.compile: right numbers whatever was compiled, and whenever it was."""

from __future__ import annotations

from functools import partial

import pytest
import sluiceway as sw
import torch
from small_models import Tied, loss_of, make, same_bits, update_error
from torch import nn
from twins import LR, identity, train
from updates import SLOW, trained_error


def whole(model, **how):
    return torch.compile(model, **how)


def in_place(model, **how):
    model.compile(**how)
    return model


def blocks(model, **how):
    for block in model.blocks:
        block.compile(**how)
    return model


def replaced(model, **how):
    model.blocks[0].up = torch.compile(model.blocks[0].up, **how)
    model.blocks[1] = torch.compile(model.blocks[1], **how)
    return model


def function(model, **how):
    return torch.compile(lambda x: model(x), **how)


HOWS = {
    "whole": partial(whole, backend="eager"),
    "aot": partial(whole, backend="aot_eager"),
    "fullgraph": partial(whole, backend="aot_eager", fullgraph=True),
    "in-place": partial(in_place, backend="aot_eager", fullgraph=True),
    "blocks": partial(blocks, backend="eager"),
    "replaced": partial(replaced, backend="eager", fullgraph=True),
    "function": partial(function, backend="eager", fullgraph=True),
}


def traced(compiled, model):
    """A step was made, but not by us: the graph is there, and has no hook in it."""
    loss_of(compiled, 99).backward()
    for parameter in model.parameters():
        parameter.grad = None
    return compiled


class After(nn.Module):
    """The first steps run as they are, the others compiled."""

    def __init__(self, model, how, steps=3):
        super().__init__()
        self.model, self.how, self.steps, self.compiled = [model], how, steps, None

    def forward(self, x):
        self.steps -= 1
        if self.steps == 0:
            self.compiled = self.how(self.model[0])
        return (self.model[0] if self.compiled is None else self.compiled)(x)


@pytest.mark.parametrize(
    ("when", "how"),
    [
        *(("traced", how) for how in HOWS),
        *(("before", how) for how in ("fullgraph", "replaced")),
        *(("after", how) for how in ("whole", "in-place")),
        *(("later", how) for how in ("aot", "blocks")),
    ],
)
def test_compiled_models_train_as_with_native(when, how):
    how = HOWS[how]
    places = {
        "before": {"before": how},
        "traced": {"before": lambda model: traced(how(model), model)},
        "after": {"after": how},
        "later": {"after": lambda model: After(model, how)},
    }
    assert trained_error(make, **places[when]) <= 1e-5


def test_a_compiled_training_step_with_optimizer_and_all():
    ours, theirs = make(), make()

    def compiled(model, opt):
        @torch.compile(backend="eager")
        def step(number):
            loss_of(model, number).backward()
            opt.step()
            opt.zero_grad()

        return step

    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, link=SLOW) as opt:
        for number in range(8):
            compiled(ours, opt)(number)
    train(theirs, native, 8)
    assert update_error(make(), ours, theirs) <= 1e-5


def test_two_optimizers_one_of_whose_models_is_compiled():
    other = make(seed=1)
    with identity(other, link=SLOW) as another:
        train(other, another, 1)
        assert another._in_flight.names()
        assert trained_error(make, after=HOWS["aot"], steps=4) <= 1e-5
        assert not another._in_flight.names()  # A graph of anything may read anything.


@pytest.mark.parametrize("how", ["whole", "blocks"])
def test_forgetting_what_was_compiled_does_not_forget_to_wait(how):
    def forgets(model):
        def compiles(model):
            torch._dynamo.reset()  # As notebooks do before they compile.
            return HOWS[how](model)

        return After(model, compiles)

    assert trained_error(make, after=forgets) <= 1e-5


def test_residuals_of_a_compiled_model_are_those_of_the_plain_one():
    plain, compiled = make(Tied), make(Tied)
    for model, how in ((plain, lambda model: model), (compiled, HOWS["whole"])):
        with sw.SubspaceAdamW(model, codec="block_random", lr=LR, accumulate=1, link=SLOW) as opt:
            train(how(model), opt, 4)
            assert any(choice["residual"] != "none" for choice in opt.describe())
    assert same_bits(plain, compiled)


def test_a_calibration_closure_runs_although_the_model_is_one_graph():
    model = make()
    calls = []

    def closure():
        calls.append(1)
        return loss_of(model, 90)

    model.compile(backend="eager", fullgraph=True)
    refresh = sw.Refresh(every=2, source="closure", closure=closure, learn_steps=3)
    with sw.SubspaceAdamW(model, lr=LR, codec="sparse_learned", refresh=refresh) as opt:
        train(model, opt, 5)
        assert len(calls) >= 2
        assert opt.skipped_steps == 0


def test_a_backward_that_raises_in_a_compiled_model_leaves_nothing_behind():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        compiled = in_place(ours, backend="eager")
        train(compiled, opt, 2)
        hook = ours.blocks[0].up.weight.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(compiled, 7).backward()
        hook.remove()
        for parameter in ours.parameters():
            parameter.grad = None
        train(compiled, opt, 2, first=2)
        train(plain, other, 4)
    assert same_bits(ours, plain)


TRANSFORMS = {"grad": torch.func.grad, "vmap": partial(torch.vmap, in_dims=(0, None))}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_functions_are_compiled_as_without_us(transform):
    def energy(weight, x):
        return (weight @ x).square().sum()

    weight, x = torch.randn(4, 3), torch.randn(3)
    with identity(model := make()) as opt:
        train(model, opt, 2)
        plain = TRANSFORMS[transform](energy)
        compiled = torch.compile(plain, fullgraph=True, backend="eager")
        assert torch.allclose(compiled(weight, x), plain(weight, x))
