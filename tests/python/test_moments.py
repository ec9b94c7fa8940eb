"""`opt.state` has moments of ordinary parameters; who asks for others is told where they are."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest
import sluiceway as sw
import torch
from small_models import make, update_error
from twins import LR, identity, train
from updates import SLOW


@pytest.fixture
def trained():
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 2)
        yield model, opt


@pytest.mark.parametrize(
    "ask",
    [
        lambda state, p: state[p],
        lambda state, p: p in state,
        lambda state, p: state.get(p),
        lambda state, p: state.pop(p, None),
        lambda state, p: state.setdefault(p, {}),
        lambda state, p: state.update({p: {}}),
    ],
    ids=["index", "in", "get", "pop", "setdefault", "update"],
)
def test_moments_of_a_compressed_weight_are_in_the_state_dict(trained, ask):
    model, opt = trained
    words = r"SubspaceAdamW.state: moments of blocks.0.up.weight are the engine's"
    with pytest.raises(sw.InvalidArgument, match=words):
        ask(opt.state, model.blocks[0].up.weight)
    assert set(opt.state[model.leave.bias]) == {"step", "exp_avg", "exp_avg_sq"}


def test_moments_are_not_forgotten_in_part(trained):
    _, opt = trained
    with pytest.raises(sw.InvalidArgument, match="holds no moments of compressed weights"):
        opt.state.clear()
    with pytest.raises(sw.InvalidArgument, match="holds no moments of compressed weights"):
        opt.state = defaultdict(dict)
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
