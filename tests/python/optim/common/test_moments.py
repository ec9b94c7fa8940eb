"""`opt.state` is read and changed as torch's: what loops do to moments, the next step goes by."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest
import sluiceway as sw
import torch
from small_models import loss_of, make, same_bits, update_error
from twins import LR, identity, train
from updates import SLOW


def subspace(model, tmp_path):
    return identity(model, link=SLOW, eps=EPS)


def offload(model, tmp_path):
    return sw.OffloadAdamW(model, lr=LR, eps=EPS, tier="host", link=SLOW)


def offload_disk(model, tmp_path):
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "store"
    return sw.OffloadAdamW(model, lr=LR, eps=EPS, tier="disk", path=path, link=SLOW)


EPS = 1e-6  # Adam divides by less noise where gradients are small.
ENGINES = pytest.mark.parametrize("engine", [subspace, offload, offload_disk])


def zero_in_a_loop(model, opt):
    """Reset states as ReLoRA does (axolotl-ai-cloud/axolotl#1414, pytorch/pytorch#37410)."""
    for state in opt.state.values():
        for key, value in state.items():
            if torch.is_tensor(value) and key != "step":
                value.zero_()


def zero_around_autograd(model, opt):
    for state in opt.state.values():
        state["exp_avg"].data.zero_()


def zero_by_parameter(model, opt):
    for group in opt.param_groups:
        for p in group["params"]:
            opt.state[p]["exp_avg"].zero_()
            opt.state[p]["exp_avg_sq"].mul_(0.5)


def replace_tensors(model, opt):
    for state in opt.state.values():
        state["exp_avg"] = torch.zeros_like(state["exp_avg"])


def assign_entries(model, opt):
    for p, state in list(opt.state.items()):
        opt.state[p] = {**state, "exp_avg": state["exp_avg"] * 0.25}


def delete_in_a_loop(model, opt):
    """Begin anew as in deepspeedai/DeepSpeed#5615."""
    for p in list(opt.state):
        del opt.state[p]


def pop_some(model, opt):
    opt.state.pop(model.blocks[0].up.weight)
    opt.state.pop(model.leave.bias)


def clear(model, opt):
    opt.state.clear()


def assign(model, opt):
    opt.state = defaultdict(dict)


CHANGES = [
    *(zero_in_a_loop, zero_around_autograd, zero_by_parameter, replace_tensors, assign_entries),
    *(delete_in_a_loop, pop_some, clear, assign),
]


@ENGINES
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_loops_do_to_moments_is_what_they_do_to_adamws(change, engine, tmp_path):
    ours, theirs = make(), make()
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, eps=EPS, foreach=False)
    with engine(ours, tmp_path) as opt:
        for model, optimizer in ((ours, opt), (theirs, native)):
            train(model, optimizer, 3)
            change(model, optimizer)
            train(model, optimizer, 3, first=3)
    assert update_error(make(), ours, theirs) <= 1e-5


def test_a_list_of_entries_is_live_until_the_next_backward():
    ours, theirs = make(), make()
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, link=SLOW) as opt:
        for model, optimizer in ((ours, opt), (theirs, native)):
            train(model, optimizer, 3)
            for moment in [state["exp_avg"] for state in optimizer.state.values()]:
                moment.zero_()
            train(model, optimizer, 3, first=3)
    assert update_error(make(), ours, theirs) <= 1e-5


@ENGINES
def test_looking_changes_no_bit(engine, tmp_path):
    looked, plain = make(), make()
    for number, model in enumerate((looked, plain)):
        with engine(model, tmp_path / str(number)) as opt:
            train(model, opt, 2)
            if model is looked:
                assert len(opt.state) == len(list(model.parameters()))
                for p in model.parameters():
                    assert p in opt.state
                    assert opt.state[p]["step"] == 2
                    assert opt.state.get(p)["exp_avg"].dtype == torch.float32
                opt.state = opt.state
                for p, state in opt.state.items():  # As Lightning moves them, at its end.
                    opt.state[p] = {
                        key: value.clone() if torch.is_tensor(value) else value
                        for key, value in state.items()
                    }
            train(model, opt, 2, first=2)
    assert same_bits(looked, plain)


@pytest.mark.parametrize("codec", ["block_random", "none"])
def test_residuals_begin_anew_with_the_rest(codec):
    model = make()
    with sw.SubspaceAdamW(model, lr=LR, codec=codec, residual="factored") as opt:
        train(model, opt, 3)
        weight = model.blocks[0].up.weight
        assert opt.state[weight]["residual"].any()
        del opt.state[weight]
        train(model, opt, 1, first=3)
        again = opt.state[weight]
        assert again["residual_step"] == 1
        assert again["residual"].any()
        train(model, opt, 1, first=4)


def test_a_change_between_backward_and_step_is_refused():
    model = make()
    with identity(model) as opt:
        train(model, opt, 1)
        loss_of(model, 1).backward()
        zero_in_a_loop(model, opt)
        with pytest.raises(sw.InvalidArgument, match=r"was changed while gradients are gathered"):
            opt.step()


def test_a_state_that_is_none_is_refused_by_name():
    model = make()
    with identity(model) as opt:
        train(model, opt, 1)
        opt.state[model.blocks[0].up.weight]["exp_avg"] = torch.zeros(3)
        with pytest.raises(sw.InvalidArgument, match=r"exp_avg of blocks.0.up.weight is \(3,\)"):
            loss_of(model, 1).backward()


def test_before_the_first_step_and_after_the_last_there_is_nothing():
    model = make()
    with identity(model) as opt:
        assert len(opt.state) == 0
        assert opt.state[model.blocks[0].up.weight] == {}
        train(model, opt, 1)
        assert len(opt.state) == len(list(model.parameters()))
    assert len(opt.state) == len(opt._ordinary.named)


def test_moments_of_ordinary_parameters_can_be_changed_and_survive_a_load():
    ours, theirs = make(), make()
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)

    def change(model, opt):
        opt.state[model.leave.bias]["exp_avg"].zero_()

    with identity(ours, link=SLOW) as opt:
        train(ours, opt, 4)
        change(ours, opt)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        train(ours, opt, 4, first=4)
        assert type(copy.deepcopy(opt.state)) is dict
    train(theirs, native, 4)
    change(theirs, native)
    train(theirs, native, 4, first=4)
    assert update_error(make(), ours, theirs) <= 1e-5
