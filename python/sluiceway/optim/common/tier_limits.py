"""Limits of each tier: the budget if given, else the machine's memory."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Literal

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.values import Budget
from sluiceway.machine.device_ops import DeviceOps, HostOps, ops_on
from sluiceway.machine.placement import Placement, is_here
from sluiceway.optim.common import torch_private

_HOST = HostOps()
_MOST_LANE_THREADS = 8  # Enough to saturate the memory of a desktop's processor.
_OTHER_THREADS = 2  # The main thread, and autograd's thread.


def device_limit(given: int | None, device: DeviceOps = _HOST) -> int:
    """Return the bytes of the device tier: the budget if given, else the device's offer."""
    return device.offered_bytes() if given is None else given


def planned_device_limit(given: int | None, placement: Placement) -> int | None:
    """Return the device limit for a plan; None for another machine's device without a budget."""
    return device_limit(given, ops_on(placement.device)) if is_here(placement.name) else given


def tier_limits(budget: Budget | None, device: DeviceOps = _HOST) -> list[int | None]:
    """Return the bytes of device, host, pinned and disk; host defaults to half of its memory."""
    given = budget or Budget()
    memory = _HOST.offered_bytes()
    host, pinned = (memory if tier is None else tier for tier in (given.host, given.pinned))
    return [device_limit(given.device, device), host, pinned, given.disk]


def lane_threads(asked: Literal["auto"] | int, compute: _core.Stream, pinned: bool) -> int:
    """Return the number of threads that share AdamW on the host; 1 if `pinned` to one core.

    On the host device the model computes on the same cores.
    """
    if asked != "auto":
        return asked
    if pinned or compute == _core.Stream.host():
        return 1
    return _threads_of_this_machine()


def planned_lane_threads(asked: Literal["auto"] | int, placement: Placement) -> int:
    """Return `lane_threads` for a plan; another machine with a card has enough cores."""
    if asked != "auto":
        return asked
    if placement.device.type == "cpu":
        return 1
    return _threads_of_this_machine() if is_here(placement.name) else _MOST_LANE_THREADS


def _threads_of_this_machine() -> int:
    return min(_MOST_LANE_THREADS, max(1, len(os.sched_getaffinity(0)) - _OTHER_THREADS))


def parameter_bytes(model: nn.Module, away: Collection[torch.Tensor] = ()) -> int:
    """Return the bytes of the model's parameters and buffers; each storage counts once.

    Those in `away` do not count.
    """
    seen, left_out = {}, set(map(id, away))
    with torch_private.asking_no_class():
        for tensor in [*model.parameters(), *model.buffers()]:
            if id(tensor) not in left_out:
                storage = tensor.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
