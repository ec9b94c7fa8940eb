"""A state goes on bit for bit wherever its tensors are, and whatever holds them."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sluiceway as sw
import torch
from accelerate.optimizer import move_to_device
from on_card import CARD, OnCard, moving_to_card
from sluiceway.optim.common.state import plain_state
from small_models import make, same_bits
from twins import LR, train
from zo_models import OPTIONS, decoder, same, zo_train

WAYS = {
    "compressed": lambda model: sw.SubspaceAdamW(
        model, lr=LR, codec="block_pca", refresh=sw.Refresh(every=2)
    ),
    "sketch": lambda model: sw.SubspaceAdamW(
        model, lr=LR, codec="sparse_random", nnz=1, residual="sign"
    ),
    "offload": lambda model: sw.OffloadAdamW(model, lr=LR, tier="host"),
    "offload with a codec": lambda model: sw.OffloadAdamW(
        model, lr=LR, tier="host", codec="block_random"
    ),
}


def tensors_in(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        state = list(state.values())
    return [t for each in state for t in tensors_in(each)] if isinstance(state, list) else []


def on_card(state: dict[str, Any]) -> dict[str, Any]:
    """Move a state as Accelerate does when it prepares an optimizer."""
    with moving_to_card():
        moved = move_to_device(state, CARD)
    assert tensors_in(moved)
    assert all(isinstance(t, OnCard) for t in tensors_in(moved))
    return moved


class Own(dict):
    """A dictionary of somebody else."""


def rebuilt(state: Any) -> Any:
    """Rebuild a state in other containers, with numbers of torch and of numpy."""
    if isinstance(state, dict):
        kind = OrderedDict if "state" in state else Own
        return kind((key, rebuilt(value)) for key, value in state.items())
    if isinstance(state, list):
        return tuple(map(rebuilt, state))
    if type(state) is int:
        return torch.tensor(state)
    return np.float64(state) if type(state) is float else state


@pytest.mark.parametrize("change", [on_card, rebuilt, UserDict])
@pytest.mark.parametrize("way", WAYS)
def test_training_goes_on_bit_for_bit(way, change):
    whole = make()
    with WAYS[way](whole) as opt:
        train(whole, opt, 3)
        opt.synchronize()
        first, state = copy.deepcopy(whole), copy.deepcopy(opt.state_dict())
        train(whole, opt, 3, first=3)
    with WAYS[way](first) as opt:
        opt.load_state_dict(change(state))
        assert all(m.device.type == "cpu" for s in opt.state.values() for m in tensors_in(s))
        assert all(isinstance(group["betas"], tuple) for group in opt.param_groups)
        train(first, opt, 3, first=3)
    assert same_bits(first, whole)


def test_an_optimizer_that_was_just_made_takes_its_own_state_from_the_card():
    moved, plain = make(), make()
    for model, change in ((moved, on_card), (plain, dict)):
        with sw.SubspaceAdamW(model, lr=LR, codec="block_random") as opt:
            opt.load_state_dict(change(opt.state_dict()))
            train(model, opt, 2)
    assert same_bits(moved, plain)


def test_a_state_of_torch_that_was_moved_is_taken_over():
    theirs = make()
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    train(theirs, native, 3)
    copies = [copy.deepcopy(theirs) for _ in range(2)]
    for model, change in zip(copies, (on_card, copy.deepcopy), strict=True):
        with sw.OffloadAdamW(model, lr=LR, tier="host") as opt:
            opt.load_state_dict(change(native.state_dict()))
            assert opt.engine.committed_steps == 3
            train(model, opt, 2, first=3)
    assert same_bits(*copies)


def resident(model: torch.nn.Module) -> sw.ZoSgd:
    return sw.ZoSgd(model, **OPTIONS)


def writing_back(model: torch.nn.Module) -> sw.ZoSgd:
    return sw.ZoSgd(model, mode="write_back", tier="host", **OPTIONS)


@pytest.mark.parametrize("made", [resident, writing_back])
@pytest.mark.parametrize("change", [on_card, rebuilt])
def test_masters_that_were_moved_are_taken_over(
    made: Callable[[torch.nn.Module], sw.ZoSgd], change: Callable[[Any], Any]
) -> None:
    whole, again = (decoder().to(torch.bfloat16) for _ in range(2))
    opt = made(whole)
    zo_train(opt, whole, range(2))
    weights, state = copy.deepcopy((whole.state_dict(), opt.state_dict()))
    expected = zo_train(opt, whole, range(2, 4))
    again.load_state_dict(weights)
    other = made(again)
    other.load_state_dict(change(state))
    assert zo_train(other, again, range(2, 4)) == expected
    assert same(whole.state_dict(), again)


def test_numbers_and_moments_without_dimensions_are_told_apart():
    one = torch.tensor(2.0)
    state = {"state": {0: {"step": one, "exp_avg": one}}, "param_groups": [{"betas": (one, 0.5)}]}
    plain = plain_state(state, to_host=True)
    assert plain["state"][0]["step"] == 2
    assert type(plain["state"][0]["step"]) is int
    assert torch.is_tensor(plain["state"][0]["exp_avg"])
    assert plain["param_groups"] == [{"betas": (2.0, 0.5)}]


def test_what_is_on_the_host_is_not_copied():
    moment = torch.zeros(3)
    plain = plain_state({"state": {0: {"exp_avg": moment}}}, to_host=True)
    assert plain["state"][0]["exp_avg"].data_ptr() == moment.data_ptr()
