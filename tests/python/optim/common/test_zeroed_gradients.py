"""Gradients zeroed in place, or set to None, in models whose layers skip steps; torch is the judge.

After zeros in place AdamW goes on with weights that have no gradient in a step. That is refused;
after None it leaves them, and so do we.
"""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import Bare, Stack, batch, loss_of, make, update_error
from torch import nn
from torch.nn import functional
from twins import LR, identity, train
from updates import SLOW, driven_error

STEPS = 8
REFUSED = r"has no gradient in this step, .* call zero_grad\(set_to_none=True\)"


class Scaled(Bare):
    """The first parameter is of the root, as CLIP's logit_scale, and its gradient comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, x, skipped=None):
        return super().forward(x, skipped) * self.logit_scale


class FlatScale(Scaled):
    """A model whose scale has a gradient of exactly zero."""

    def forward(self, x, skipped=None):
        return Bare.forward(self, x, skipped) + 0.0 * self.logit_scale


class UnusedHead(Stack):
    """The head that is registered first is used in the first step alone."""

    def __init__(self) -> None:
        super().__init__()
        leave = self.leave
        del self.leave
        self.enter, enter = nn.Linear(256, 8), self.enter  # Keeps its place.
        self.into, self.leave = enter, leave

    def forward(self, x, skipped=None):
        x = self.into(x)
        head = self.enter if skipped is None else self.leave
        for number, block in enumerate(self.blocks):
            x = x if number == skipped else block(x)
        return head(x)


MODELS = pytest.mark.parametrize("kind", [Bare, Scaled, FlatScale, UnusedHead])


def skipping_loss(model, step):
    """Every layer has a gradient in the first step; later each is left out in its turn."""
    x, y = batch(step)
    return functional.mse_loss(model(x, skipped=step % 2 if step else None), y)


def clear_model(model, opt, **how):
    model.zero_grad(**how)


def clear_optimizer(model, opt, **how):
    opt.zero_grad(**how)


def clear_by_hand(model, opt, set_to_none=True):
    for p in model.parameters():
        if set_to_none:
            p.grad = None
        elif p.grad is not None:
            p.grad.zero_()


CLEARS = pytest.mark.parametrize("clear", [clear_model, clear_optimizer, clear_by_hand])


@MODELS
@CLEARS
@pytest.mark.parametrize("after_forward", [False, True])
def test_layers_that_skip_steps_are_left_alone_after_none(kind, clear, after_forward):
    def drive(model, opt):
        for step in range(STEPS):
            loss = skipping_loss(model, step)
            if after_forward:
                clear(model, opt)
            loss.backward()
            opt.step()
            if not after_forward:
                clear(model, opt)

    assert driven_error(drive, lambda: make(kind)) <= 1e-5


@MODELS
@CLEARS
@pytest.mark.parametrize("after_forward", [False, True])
def test_layers_that_skip_steps_are_named_after_zeros(kind, clear, after_forward):
    model = make(kind)
    with identity(model, link=SLOW) as opt:
        skipping_loss(model, 0).backward()
        opt.step()
        if not after_forward:
            clear(model, opt, set_to_none=False)
        loss = skipping_loss(model, 1)
        if after_forward:
            clear(model, opt, set_to_none=False)
        loss.backward()
        with pytest.raises(sw.InvalidArgument, match=REFUSED):
            opt.step()
        model.zero_grad()
        skipping_loss(model, 2).backward()
        opt.step()


@MODELS
@CLEARS
def test_zeros_are_adamws_where_every_layer_has_a_gradient(kind, clear):
    def drive(model, opt):
        for step in range(STEPS):
            loss = loss_of(model, step)
            clear(model, opt, set_to_none=False)
            loss.backward()
            opt.step()

    assert driven_error(drive, lambda: make(kind)) <= 1e-5


@MODELS
@CLEARS
def test_a_step_without_any_compressed_gradient_after_zeros(kind, clear):
    model = make(kind)
    with identity(model, link=SLOW) as opt:
        train(model, opt, 2)
        loss_of(model, 2).backward()
        opt.step()
        clear(model, opt, set_to_none=False)
        with pytest.raises(sw.InvalidArgument, match=REFUSED):
            opt.step()
        clear(model, opt)
        opt.step()  # Nothing has a gradient.


@MODELS
def test_a_loss_of_another_model_comes_through_before_zeros(kind):
    """The loss leaves out a layer, whose gradient from the step before torch keeps and zeroes."""
    model = make(kind)
    with identity(model, link=SLOW) as opt:
        skipping_loss(model, 0).backward()
        opt.step()
        skipping_loss(model, 1).backward()
        model.zero_grad(set_to_none=False)
        skipping_loss(model, 1).backward()
        with pytest.raises(sw.InvalidArgument, match=r"\.1\..*" + REFUSED):
            opt.step()


def test_gradients_that_were_zero_by_themselves_are_used_by_one_step_too():
    model = make(Bare)
    with identity(model, link=SLOW) as opt:
        (skipping_loss(model, 0) * 0.0).backward()
        opt.step()
        skipping_loss(model, 1).backward()
        with pytest.raises(sw.InvalidArgument, match="were not zeroed"):
            opt.step()


@pytest.mark.parametrize("after_forward", [False, True])
def test_zeros_around_a_calibration(after_forward):
    """A calibration runs in a forward, with gradients of its own for every weight."""
    model = make(Bare)
    calls = []

    def closure():
        calls.append(1)
        return loss_of(model, 90)

    refresh = sw.Refresh(every=1, source="closure", closure=closure, learn_steps=1)
    with sw.SubspaceAdamW(model, lr=LR, codec="sparse_learned", refresh=refresh) as opt:
        skipping_loss(model, 0).backward()
        opt.step()
        if not after_forward:
            model.zero_grad(set_to_none=False)
        before = len(calls)
        loss = skipping_loss(model, 1)
        assert len(calls) > before
        if after_forward:
            model.zero_grad(set_to_none=False)
        loss.backward()
        with pytest.raises(sw.InvalidArgument, match=REFUSED):
            opt.step()


def test_a_calibration_hides_no_gradients_that_were_used():
    model = make(Bare)
    refresh = sw.Refresh(
        every=1, source="closure", closure=lambda: loss_of(model, 90), learn_steps=1
    )
    with sw.SubspaceAdamW(model, lr=LR, codec="sparse_learned", refresh=refresh) as opt:
        loss_of(model, 0).backward()
        opt.step()
        loss_of(model, 1).backward()
        with pytest.raises(sw.InvalidArgument, match="were not zeroed"):
            opt.step()


def test_a_calibration_counts_for_no_step():
    """The weights that it reaches have no gradient of a step, which zeros would keep."""
    ours, other = make(Bare), make(Bare)

    def closures(model):
        return lambda: loss_of(model, 90)

    for model, how in ((ours, False), (other, True)):
        refresh = sw.Refresh(every=2, source="closure", closure=closures(model), learn_steps=1)
        with sw.SubspaceAdamW(model, lr=LR, codec="sparse_learned", refresh=refresh) as opt:
            for step in range(4):
                x, y = batch(step)
                functional.mse_loss(model(x, skipped=0), y).backward()
                opt.step()
                model.zero_grad(set_to_none=how)
    assert update_error(make(Bare), ours, other) == 0
