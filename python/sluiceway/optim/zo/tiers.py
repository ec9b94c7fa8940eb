"""Makes the tier that the options name, and finds the device it computes on."""

from __future__ import annotations

from typing import Any

from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps, device_ops
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.device_tier import DeviceTier
from sluiceway.optim.zo.disk_tier import DiskTier
from sluiceway.optim.zo.host_memory import streaming_device
from sluiceway.optim.zo.host_tier import HostTier, StreamedTier
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight
from sluiceway.optim.zo.write_back_tier import WriteBackTier

# Options that a tier does not use, with the tier that does.
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
    """Operations of the device that computes the model.

    Raises
    ------
    InvalidArgument, Unavailable
        There is no such device.
    """
    if options.tier == "device":
        return device_ops(owner, options.device, [(w.name, w.parameter) for w in weights])
    return streaming_device(owner, options.device, weights)


def make_tier(training: Training, state: dict[Any, Any]) -> DeviceTier | StreamedTier:
    """Make the tier for the optimizer's options.

    Raises
    ------
    InvalidArgument
        An option is set that the tier does not use.
    """
    options = training.options
    for name, tier in _FOREIGN[options.tier].items():
        if (given := getattr(options, name)) is not None:
            raise InvalidArgument(
                f"{training.owner}: {name} is {given!r}, but tier is {options.tier!r}, "
                f"{_WHY[options.tier]}; leave {name} out, or set tier={tier!r}"
            )
    if options.mode == "write_back" and options.path is not None:
        raise InvalidArgument(
            f"{training.owner}: path is {options.path!r}, but mode is 'write_back', which has no "
            "log; leave path out, or set mode='log'"
        )
    if options.tier == "device":
        return DeviceTier(training, state)
    if options.mode == "write_back":
        return WriteBackTier(training, state)
    return DiskTier(training) if options.tier == "disk" else HostTier(training)
