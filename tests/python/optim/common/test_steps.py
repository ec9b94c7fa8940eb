"""A step is made whole or not at all, and changes what it has gradients of."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from sluiceway.optim.common import ordinary
from small_models import batch, loss_of, make
from torch.nn import functional
from twins import identity, train
from updates import SLOW, driven_error

# ---- Refused before anything is changed ----


def strides(model, _):
    weight = model.leave.weight
    weight.data = weight.data.t().contiguous().t()
    return lambda: setattr(weight, "data", weight.data.contiguous()), "leave.weight has strides"


def strides_of_a_compressed_weight(model, _):
    weight = model.blocks[1].up.weight
    weight.data = weight.data.t().contiguous().t()
    return (
        lambda: setattr(weight, "data", weight.data.contiguous()),
        "blocks.1.up.weight has strides",
    )


def sparse(model, _):
    bias, dense = model.leave.bias, model.leave.bias.grad
    bias.grad = dense.to_sparse()
    return lambda: setattr(
        bias, "grad", dense
    ), "leave.bias is torch.sparse_coo, expected a dense one"


SPOILS = [strides, strides_of_a_compressed_weight, sparse]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("at", [0, 3])
def test_a_refused_step_has_changed_nothing_and_can_be_called_again(spoil, at):
    def drive(model, opt):
        for step in range(6):
            loss_of(model, step).backward()
            if step == at and not isinstance(opt, torch.optim.AdamW):
                repair, words = spoil(model, opt)
                with pytest.raises(sw.InvalidArgument, match=words):
                    opt.step()
                repair()
            opt.step()
            opt.zero_grad()

    assert driven_error(drive) <= 1e-5


def test_moments_that_were_loaded_with_other_strides_train_on():
    def drive(model, opt):
        train(model, opt, 3)
        state = opt.state_dict()
        if not isinstance(opt, torch.optim.AdamW):
            of_leave = state["state"][len(list(model.parameters())) - 2]
            for key in ("exp_avg", "exp_avg_sq"):
                of_leave[key] = of_leave[key].t().contiguous().t()
                assert not of_leave[key].is_contiguous()
        opt.load_state_dict(state)
        train(model, opt, 3, first=3)

    assert driven_error(drive) <= 1e-5


def test_a_step_that_breaks_half_way_leaves_nothing_stale_to_read(monkeypatch):
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        loss_of(model, 1).backward()
        opt.synchronize()

        def interrupted(*_args, **_keywords):
            raise KeyboardInterrupt

        monkeypatch.setattr(ordinary._core, "adam_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opt.step()
        monkeypatch.undo()
        read = [w.parameter.detach().clone() for w in opt.weights]
        opt.synchronize()
        assert all(torch.equal(a, w.parameter) for a, w in zip(read, opt.weights, strict=True))
        with pytest.raises(sw.InvalidArgument, match="were not zeroed"):
            opt.step()  # It would update the ordinary parameters alone.


# ---- Which weights a step changes ----


def backward_of_the_other_half_after_a_step(model, opt):
    for step in range(4):
        middle = model.enter(batch(step)[0]).detach()
        first, second = model.blocks[0](middle), model.blocks[1](middle)
        first.square().mean().backward()
        opt.step()
        opt.zero_grad()
        second.square().mean().backward()
        opt.step()
        opt.zero_grad()


def a_step_without_gradients_after_the_forward(model, opt):
    for step in range(4):
        loss = loss_of(model, step)
        opt.step()
        loss.backward()
        opt.step()
        opt.zero_grad()


def a_step_inside_of_a_backward(model, opt):
    def take(_):
        opt.step()
        opt.zero_grad()

    for step in range(4):
        x, y = batch(step)
        half = model.blocks[0](model.enter(x))
        half.register_hook(take)
        functional.mse_loss(model.leave(model.blocks[1](half)), y).backward()
        opt.step()
        opt.zero_grad()


GRAPHS = [
    backward_of_the_other_half_after_a_step,
    a_step_without_gradients_after_the_forward,
    a_step_inside_of_a_backward,
]


@pytest.mark.parametrize("drive", GRAPHS)
def test_a_step_spoils_no_graph_of_weights_that_it_leaves_alone(drive):
    assert driven_error(drive) <= 1e-5


def test_a_step_still_spoils_a_graph_of_weights_that_it_updates():
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        loss = loss_of(model, 1)
        opt.step()
        opt.zero_grad()
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()
