"""What each tier may hold: what the budget gives, else what the machine has."""

from __future__ import annotations

import os

from torch import nn

from sluiceway.config.values import Budget


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def device_limit(given: int | None) -> int:
    """Bytes of the device tier: what the budget gives, else half of memory on the host device."""
    return _half_of_memory() if given is None else given


def tier_limits(budget: Budget | None) -> list[int | None]:
    """Bytes for device, host, pinned, disk; on the host device half of memory by default."""
    given = budget or Budget()
    memory = _half_of_memory()
    host, pinned = (memory if tier is None else tier for tier in (given.host, given.pinned))
    return [device_limit(given.device), host, pinned, given.disk]


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of the model's parameters and buffers, each storage once."""
    seen = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
