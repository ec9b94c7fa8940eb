"""The tier that options name, and the device of its weights."""

from __future__ import annotations

from typing import Any

from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps, device_ops
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.device_tier import DeviceTier
from sluiceway.optim.zo.disk.disk_tier import DiskTier
from sluiceway.optim.zo.host.host_memory import streaming_device
from sluiceway.optim.zo.host.host_tier import HostTier, StreamedTier
from sluiceway.optim.zo.parity.parity_tier import ParityTier
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight

# Options that play no part in a tier, and the tier whose they are.
_FOREIGN = {
    "device": dict.fromkeys(("path", "link", "budget", "trace"), "host") | {"store": "disk"},
    "host": {"store": "disk"},
    "disk": {},
}
_WHY = {
    "device": "which streams and logs nothing",
    "host": "which keeps no weights on disk",
}


def device_of(owner: str, options: ZoArguments, weights: list[TrainedWeight]) -> DeviceOps:
    """Where the model computes.

    Raises
    ------
    InvalidArgument, Unavailable
        There is no such device.
    """
    if options.tier == "device":
        return device_ops(owner, options.device, [(w.name, w.parameter) for w in weights])
    return streaming_device(owner, options.device, weights)


def make_tier(training: Training, state: dict[Any, Any]) -> DeviceTier | StreamedTier:
    """Of the optimizer's options.

    Raises
    ------
    InvalidArgument
        An option plays no part in it.
    """
    options = training.options
    for name, tier in _FOREIGN[options.tier].items():
        if (given := getattr(options, name)) is not None:
            raise InvalidArgument(
                f"{training.owner}: {name} is {given!r} and tier {options.tier!r}, "
                f"{_WHY[options.tier]}, expected no {name}, or tier={tier!r}"
            )
    if options.mode == "parity" and options.path is not None:
        raise InvalidArgument(
            f"{training.owner}: path is {options.path!r} and mode 'parity', which has no log, "
            "expected no path, or mode='log'"
        )
    if options.tier == "device":
        return DeviceTier(training, state)
    if options.mode == "parity":
        return ParityTier(training, state)
    return DiskTier(training) if options.tier == "disk" else HostTier(training)
