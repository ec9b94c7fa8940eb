"""Hooks of state_dict() and load_state_dict() see the whole state, and may replace it."""

from __future__ import annotations

import copy

import pytest
import sluiceway as sw
import torch
from small_models import make, same_bits
from twins import LR, identity, train
from updates import SLOW
from zo_models import ZoDecoder


def offload(model):
    return sw.OffloadAdamW(model, lr=LR, tier="host", link=SLOW)


ENGINES = pytest.mark.parametrize("engine", [identity, offload])


@ENGINES
def test_a_post_hook_sees_every_state_and_may_replace_it(engine):
    model, seen = make(), []
    with engine(model) as opt:
        train(model, opt, 1)
        seen_by = opt.register_state_dict_post_hook(lambda _, state: seen.append(dict(state)))
        state = opt.state_dict()
        assert sorted(seen[0]["state"]) == sorted(state["state"])
        assert len(state["state"]) == len(list(model.parameters()))
        assert "sluiceway" in seen[0]
        opt.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
        first = []
        opt.register_state_dict_post_hook(lambda _, state: first.append(len(seen)), prepend=True)
        assert opt.state_dict()["more"] == 1
        assert first == [1]
        seen_by.remove()
        opt.state_dict()
        assert len(seen) == 2


@ENGINES
def test_a_pre_hook_of_a_load_gives_what_is_loaded(engine):
    """Rename or filter entries, as a wrapper does (pytorch/pytorch#105953)."""
    ours, again = make(), make()
    with engine(ours) as opt:
        train(ours, opt, 3)
        state = copy.deepcopy(opt.state_dict())
        wrapped = {"wrapped": state}
        train(ours, opt, 3, first=3)
    with engine(again) as opt:
        train(again, opt, 3)
        train(again, opt, 1, first=40)  # Its state is another by now.
        with torch.no_grad():
            for p, q in zip(again.parameters(), make().parameters(), strict=True):
                p.copy_(q)
        calls = []
        opt.register_load_state_dict_pre_hook(lambda _, state: state["wrapped"])
        opt.register_load_state_dict_post_hook(lambda opt: calls.append(opt.stats()["skipped"]))
        opt.load_state_dict(wrapped)
        assert len(calls) == 1
        assert opt.engine.committed_steps == 3
        for one in (opt.state_dict()["state"], state["state"]):
            assert len(one) == len(list(again.parameters()))
        loaded = opt.state_dict()["state"]
        for number, values in state["state"].items():
            assert torch.equal(loaded[number]["exp_avg"], values["exp_avg"])


def test_a_pre_hook_that_leaves_moments_out_is_heard():
    model, theirs = make(), make()
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with offload(model) as opt:
        for trained, optimizer in ((model, opt), (theirs, native)):
            train(trained, optimizer, 3)
            optimizer.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": {}})
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert all(not s["exp_avg"].any() for s in opt.state_dict()["state"].values())
    model = make()
    with identity(model) as opt:
        train(model, opt, 3)
        opt.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": {}})
        with pytest.raises(sw.InvalidArgument, match="has no 'step'"):
            opt.load_state_dict(opt.state_dict())


def test_a_pre_hook_changes_no_state_of_its_caller():
    model = make()
    with identity(model) as opt:
        train(model, opt, 1)
        state = opt.state_dict()
        opt.register_load_state_dict_pre_hook(lambda _, state: state.update(more=1))
        opt.load_state_dict(state)
        assert "more" not in state


def test_hooks_of_a_state_run_before_it_is_taken():
    model = make()
    with identity(model) as opt:
        train(model, opt, 1)
        weight = model.blocks[0].up.weight
        opt.register_state_dict_pre_hook(lambda opt: opt.state[weight]["exp_avg"].zero_())
        number = opt.numbered_weights()
        key = next(n for n, index in number.items() if opt.weights[index].parameter is weight)
        assert not opt.state_dict()["state"][key]["exp_avg"].any()


def test_hooks_of_zeroth_order_see_its_frame():
    torch.manual_seed(0)
    model, seen = ZoDecoder(), []
    with sw.ZoSgd(model, lr=1e-4) as opt:
        opt.step(lambda: model(torch.arange(10)).square().mean())
        opt.register_state_dict_post_hook(lambda _, state: seen.append(dict(state)))
        opt.register_load_state_dict_pre_hook(lambda _, state: state["wrapped"])
        state = opt.state_dict()
        assert seen[0]["sluiceway"]["committed_steps"] == 1
        opt.step(lambda: model(torch.arange(10)).square().mean())
        opt.load_state_dict({"wrapped": state})
        assert opt.committed_steps == 1


def test_hooks_change_no_bit_of_a_run():
    hooked, plain = make(), make()
    for model in (hooked, plain):
        with identity(model) as opt:
            if model is hooked:
                opt.register_state_dict_post_hook(lambda _, state: None)
                opt.register_load_state_dict_pre_hook(lambda _, state: dict(state))
            train(model, opt, 2)
            opt.load_state_dict(opt.state_dict())
            train(model, opt, 2, first=2)
    assert same_bits(hooked, plain)
