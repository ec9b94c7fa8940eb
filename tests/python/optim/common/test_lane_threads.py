"""Threads of the host lane: how many there are, and that they change no bit."""

from __future__ import annotations

import os

import pytest
import sluiceway as sw
import torch
from sluiceway import _core
from sluiceway.optim.common.tier_limits import lane_threads
from small_models import loss_of, make, same_bits

HOST, CARD = _core.Stream.host(), _core.Stream.cuda(0, 0)
WAYS = {
    "cores": lambda model, n: sw.SubspaceAdamW(model, codec="block_random", lane_threads=n),
    "int8": lambda model, n: sw.SubspaceAdamW(model, codec="svd", wire="int8", lane_threads=n),
    "offload": lambda model, n: sw.OffloadAdamW(model, chunk=65536, lane_threads=n),
    "speculative": lambda model, n: sw.OffloadAdamW(
        model, chunk=65536, policy="speculative", accumulate=1, max_norm=0.5, lane_threads=n
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_more_threads_train_to_the_same_bits(way):
    models = {}
    for threads in (1, 3):
        models[threads] = make(blocks=3)
        with WAYS[way](models[threads], threads) as opt:
            for step in range(5):
                loss_of(models[threads], step).backward()
                opt.step()
                opt.zero_grad()
    assert same_bits(models[3], models[1])
    assert not same_bits(models[3], make(blocks=3))


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 1), (4, 2), (10, 8), (64, 8)])
def test_auto_leaves_cores_to_the_program_and_takes_eight_at_most(monkeypatch, cores, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert lane_threads("auto", CARD, pinned=False) == threads
    assert lane_threads("auto", CARD, pinned=True) == 1
    assert lane_threads("auto", HOST, pinned=False) == 1
    assert lane_threads(5, HOST, pinned=True) == 5


def test_none_and_fractions_are_refused():
    for wrong in (0, -1, 1.5, "many"):
        with pytest.raises(sw.InvalidArgument, match="lane_threads"):
            sw.SubspaceAdamW(torch.nn.Linear(256, 256), lane_threads=wrong)
