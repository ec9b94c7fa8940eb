"""What each tier may hold: what the budget gives, else what the machine has."""

from __future__ import annotations

from torch import nn

from sluiceway.config.values import Budget
from sluiceway.machine.device_ops import DeviceOps, HostOps, ops_on
from sluiceway.machine.placement import Placement, is_here

_HOST = HostOps()


def device_limit(given: int | None, device: DeviceOps = _HOST) -> int:
    """Bytes of the device tier: what the budget gives, else what the device has to offer."""
    return device.offered_bytes() if given is None else given


def planned_device_limit(given: int | None, placement: Placement) -> int | None:
    """The same for a plan; None: the device is of another machine, and no budget says."""
    return device_limit(given, ops_on(placement.device)) if is_here(placement.name) else given


def tier_limits(budget: Budget | None, device: DeviceOps = _HOST) -> list[int | None]:
    """Bytes for device, host, pinned, disk; the host's are half of its memory by default."""
    given = budget or Budget()
    memory = _HOST.offered_bytes()
    host, pinned = (memory if tier is None else tier for tier in (given.host, given.pinned))
    return [device_limit(given.device, device), host, pinned, given.disk]


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of the model's parameters and buffers, each storage once."""
    seen = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
