"""Makes the tier that the options name, and finds the device it computes on."""

from __future__ import annotations

import re
from typing import Any

import torch

from sluiceway import _core
from sluiceway.errors import Unavailable
from sluiceway.machine.device_ops import DeviceOps, device_ops, ops_on
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.base_on_disk import BaseOnDisk
from sluiceway.optim.zo.device_tier import DeviceTier
from sluiceway.optim.zo.log_and_base import LogAndBase
from sluiceway.optim.zo.masters import Masters
from sluiceway.optim.zo.streamed_tier import StreamedTier
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight


def device_of(owner: str, options: ZoArguments, weights: list[TrainedWeight]) -> DeviceOps:
    """Operations of the model's device, or of the CUDA device to stream host weights to.

    Raises
    ------
    InvalidArgument, Unavailable
        There is no such device.
    """
    if options.tier == "device":
        return device_ops(owner, options.device, [(w.name, w.parameter) for w in weights])
    asked = options.device
    on_host = all(w.parameter.device.type == "cpu" for w in weights)
    if not on_host or not re.fullmatch(r"cuda(:\d+)?", asked):
        return device_ops(owner, asked, [(w.name, w.parameter) for w in weights])
    ordinal, count = torch.device(asked).index or 0, _core.cuda_device_count()
    if ordinal >= count:
        raise Unavailable(
            f"{owner}: device is {asked!r}, but this build and machine have {count} CUDA devices; "
            "leave device= out"
        )
    return ops_on(torch.device("cuda", ordinal))


def make_tier(training: Training, state: dict[Any, Any]) -> DeviceTier | StreamedTier:
    """Make the tier for the optimizer's options."""
    options = training.options
    if options.tier == "device":
        return DeviceTier(training, state)
    if options.mode == "write_back":
        return StreamedTier(training, Masters(training, state))
    return StreamedTier(
        training, BaseOnDisk(training) if options.tier == "disk" else LogAndBase(training)
    )
