"""A copy of a model is an ordinary model, and a copy of an optimizer's attributes owns nothing."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import pytest
import sluiceway as sw
import torch
from small_models import Stack, distance, loss_of, make, same_bits, update_error, weights_of
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from twins import LR, identity, train
from updates import COPIES, SLOW


@pytest.mark.parametrize("take", COPIES.values(), ids=COPIES.keys())
def test_a_copy_with_a_step_in_flight_is_an_ordinary_model_with_applied_weights(take):
    model, alone, plain = make(), make(), make()
    with identity(alone) as opt:
        train(alone, opt, 5)
    with identity(plain) as opt:
        train(plain, opt, 3)
    with identity(model, link=SLOW) as opt:
        train(model, opt, 3)
        assert opt._in_flight.names()
        twin = take(model)
        assert same_bits(twin, plain)
        for parameter in twin.parameters():
            assert type(parameter) is nn.Parameter
            assert not vars(parameter)
        for one in (twin, plain):
            train(one, torch.optim.AdamW(one.parameters(), lr=LR), 3, first=20)
        assert same_bits(twin, plain)
        assert twin.state_dict().keys() == plain.state_dict().keys()
        twin.load_state_dict(plain.state_dict())
        train(model, opt, 2, first=3)
    assert same_bits(model, alone)


def test_a_part_of_the_model_is_copied_too_and_the_copy_can_have_an_optimizer_of_ours():
    model, plain = make(), make()
    with identity(model, link=SLOW) as opt, identity(plain) as other:
        train(model, opt, 2)
        train(plain, other, 2)
        other.synchronize()
        block = copy.deepcopy(model.blocks[1])
        assert torch.equal(block.up.weight, plain.blocks[1].up.weight)
        twin = copy.deepcopy(model)
        with identity(twin, link=SLOW) as third:
            train(twin, third, 2)
            train(model, opt, 2, first=2)
        train(plain, other, 2, first=2)
    assert same_bits(model, plain)


def test_a_saved_model_is_read_where_there_is_no_sluiceway(tmp_path):
    with identity(make()) as opt:
        model = nn.Sequential(nn.Linear(16, 256), nn.Linear(256, 256))
        with identity(model, link=SLOW) as opt:
            loss = model(torch.ones(2, 16)).square().sum()
            loss.backward()
            opt.step()
            torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys, torch\n"
        "sys.modules['sluiceway'] = None\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "model(torch.ones(2, 16)).sum().backward()\n"
        "model.load_state_dict(model.state_dict())\n"
        "assert model[1].weight.grad is not None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_average_of_weights_takes_each_update_in():
    def averages(slow):
        model = make()
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        with identity(model, **({"link": SLOW} if slow else {})) as opt:
            for step in range(4):
                train(model, opt, 1, first=step)
                if not slow:
                    opt.synchronize()
                averaged.update_parameters(model)
        return averaged.module

    assert same_bits(averages(slow=True), averages(slow=False))


def test_a_shallow_copy_shares_the_weights_and_so_waits_for_them():
    model, plain = make(), make()
    with identity(model, link=SLOW) as opt, identity(plain) as other:
        train(model, opt, 1)
        train(plain, other, 1)
        assert loss_of(copy.copy(model), 1).item() == loss_of(plain, 1).item()


class Copying:
    """Has the attributes of an optimizer, as Lightning's wrapper has."""

    def __init__(self, optimizer):
        self.__class__ = type("Copied", (Copying, type(optimizer)), {})
        self.__dict__ = dict(optimizer.__dict__)
        self._optimizer = optimizer

    def step(self, closure=None):
        return self._optimizer.step(closure)


@pytest.mark.parametrize("keep", [False, True], ids=["dropped", "kept"])
def test_what_copies_the_attributes_of_an_optimizer_takes_no_hooks_away(keep):
    model, plain = make(), make()
    kept = []
    with identity(model, link=SLOW) as opt:
        for step in range(8):
            wrapper = Copying(opt)
            kept += [wrapper] if keep else []
            wrapper.zero_grad()
            loss_of(model, step).backward()
            wrapper.step()
            assert wrapper.skipped_steps == opt.skipped_steps
            del wrapper
            gc.collect()
        assert model.blocks[0].up._forward_pre_hooks
    train(plain, torch.optim.AdamW(plain.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), model, plain) <= 1e-5


def test_a_copy_of_the_attributes_knows_what_the_optimizer_knows():
    model, plain = make(), make()
    with identity(model) as opt, identity(plain) as other:
        copied = Copying(opt)
        for step in range(3):
            loss_of(model, step).backward()
            copied.zero_grad()  # Drops it, as on the optimizer itself.
            loss_of(model, 10 + step).backward()
            type(opt).step(copied)
            copied.zero_grad()
        train(plain, other, 3, first=10)
        loss_of(model, 20).backward()
        model.blocks[0].norm.weight.grad.fill_(float("nan"))
        opt.step()
        assert (copied.overflowed, copied.skipped_steps) == (True, 1)
    assert same_bits(model, plain)
    with pytest.raises(sw.InvalidArgument, match="closed"):
        copied.synchronize()


def test_a_copy_that_outlives_its_optimizer_is_refused_in_the_next_backward():
    class Attributes:
        pass

    model = make()
    opt = identity(model)
    left = Attributes()
    left.__dict__ = dict(opt.__dict__)
    del opt
    gc.collect()
    with pytest.raises(sw.InvalidArgument, match="dropped while a copy of its attributes lives"):
        loss_of(model, 0).backward()
    del left
    gc.collect()
    assert not model.blocks[0].up._forward_pre_hooks
    before = weights_of(model)
    train(model, torch.optim.AdamW(model.parameters(), lr=LR), 1)
    assert not torch.equal(before["blocks.0.up.weight"], model.blocks[0].up.weight)


def test_a_dropped_optimizer_is_gone_at_once_and_its_last_step_is_applied():
    model, waited = make(Stack), make(Stack)
    gc.disable()
    try:
        opt = identity(model, link=SLOW)
        train(model, opt, 1)
        del opt
        assert not model.blocks[0].up._forward_pre_hooks
        with identity(waited) as other:
            train(waited, other, 1)
        assert distance(model, waited) == 0.0
    finally:
        gc.enable()
