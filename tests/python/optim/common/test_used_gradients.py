"""Gradients are used by one step, whole; those of a backward that raised as torch's are."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import batch, loss_of, make
from torch import nn
from twins import identity, train
from updates import driven_error


@pytest.mark.parametrize("backwards", [0, 1, 2])
def test_gradients_that_a_step_has_used_are_not_used_again(backwards):
    def drive(model, opt):
        loss_of(model, 0).backward()
        opt.step()
        for micro in range(backwards):
            loss_of(model, 10 + micro).backward()
        if not isinstance(opt, torch.optim.AdamW):
            with pytest.raises(sw.InvalidArgument, match=r"were not zeroed.*zero_grad"):
                opt.step()
        opt.zero_grad()
        train(model, opt, 2, first=1)

    assert driven_error(drive) <= 1e-5


ZEROES = {
    "optimizer": lambda model, opt: opt.zero_grad(),
    "optimizer-zeros": lambda model, opt: opt.zero_grad(set_to_none=False),
    "model": lambda model, opt: model.zero_grad(),
    "model-zeros": lambda model, opt: model.zero_grad(set_to_none=False),
    "by-hand": lambda model, opt: [setattr(p, "grad", None) for p in model.parameters()],
}


@pytest.mark.parametrize("zero", ZEROES.values(), ids=ZEROES)
@pytest.mark.parametrize("after_forward", [True, False])
def test_every_way_of_zeroing_is_noticed(zero, after_forward):
    def drive(model, opt):
        for step in range(6):
            if not after_forward:
                zero(model, opt)
            loss = loss_of(model, step)
            if after_forward:
                zero(model, opt)
            loss.backward()
            opt.step()

    assert driven_error(drive) <= 1e-5


@pytest.mark.parametrize("zero", ZEROES.values(), ids=ZEROES)
def test_a_loss_of_another_model_may_come_through_before_gradients_are_zeroed(zero):
    def drive(model, opt):
        for step in range(6):
            zero(model, opt)
            loss_of(model, step).backward()
            opt.step()
            loss_of(model, 50 + step).backward()  # As where a generator learns from its critic.

    assert driven_error(drive) <= 1e-5


def test_a_state_is_not_loaded_between_backward_and_step():
    def drive(model, opt):
        train(model, opt, 2)
        state = opt.state_dict()
        loss_of(model, 2).backward()
        if not isinstance(opt, torch.optim.AdamW):
            with pytest.raises(sw.InvalidArgument, match=r"gathered.*call step\(\) or zero_grad"):
                opt.load_state_dict(state)
        opt.step()
        opt.zero_grad()
        opt.load_state_dict(opt.state_dict())
        train(model, opt, 2, first=3)

    assert driven_error(drive) <= 1e-5


# ---- A backward that raises ----


@pytest.mark.parametrize("micro_batches", [0, 1])
@pytest.mark.parametrize("after", ["backward", "step", "zero_grad", "model.zero_grad"])
def test_what_a_backward_gathered_before_it_raised_counts_as_with_adamw(after, micro_batches):
    def broken(_):
        raise ValueError("broke")

    def drive(model, opt):
        train(model, opt, 2)
        for micro in range(micro_batches):
            loss_of(model, 10 + micro).backward()
        half = model.blocks[0](model.enter(batch(2)[0]))
        half.register_hook(broken)
        with pytest.raises(ValueError, match="broke"):
            model.leave(model.blocks[1](half)).square().mean().backward()
        if after == "step":
            opt.step()
        if after in ("step", "zero_grad"):
            opt.zero_grad()
        if after == "model.zero_grad":
            model.zero_grad()
        train(model, opt, 4, first=3)

    assert driven_error(drive) <= 1e-5


def test_a_gradient_that_was_lost_is_said_until_it_is_zeroed():
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.raises(sw.InvalidArgument, match="between two backwards"):
            loss_of(model, 1).backward()
        for go_on in (opt.step, lambda: loss_of(model, 1).backward()):
            with pytest.raises(
                sw.InvalidArgument, match=r"lost the gradient .*call opt.zero_grad\(\)"
            ):
                go_on()
        opt.zero_grad()
        train(model, opt, 1)
