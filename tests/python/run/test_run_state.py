"""The bytes that a commit carries of a run bring back all that the engine's state does not have."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sluiceway import errors
from sluiceway.run.checkpoint import Position, packed, unpacked
from torch import nn


def engine():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.register_buffer("scratch", torch.zeros(1 << 20), persistent=False)
    return SimpleNamespace(model=model, scaler=torch.amp.GradScaler("cpu", init_scale=64.0))


def draws():
    return random.random(), float(np.random.random()), torch.rand(2).tolist()


def test_generators_scale_position_and_buffers_come_back():
    ours = engine()
    ours.model(torch.randn(8, 3))
    mean = ours.model[1].running_mean.clone()
    ours.scaler.scale(torch.ones(1))
    position = Position(step=7, batch=14, skipped=1, tokens=99, last_eval_loss=2.5)
    run = packed(position, ours, {"data": "abc", "config": {"train": {"lr": 0.1}}})
    assert len(run) < 64 << 10  # What a model keeps to itself is no part of it.
    expected = draws()
    theirs = engine()
    draws()
    state = unpacked(run)
    state.put_back(theirs)
    assert state.position == position
    assert state.extra == {"data": "abc", "config": {"train": {"lr": 0.1}}}
    assert draws() == expected
    assert theirs.scaler.get_scale() == 64.0
    assert torch.equal(theirs.model[1].running_mean, mean)
    assert int(theirs.model[1].num_batches_tracked) == 1


@pytest.mark.parametrize("cut", [0, 1, 5000])
def test_other_bytes_are_corrupt(cut):
    with pytest.raises(errors.Corrupt, match="run state of the last commit cannot be read"):
        unpacked(packed(Position(), engine(), {})[:cut])
