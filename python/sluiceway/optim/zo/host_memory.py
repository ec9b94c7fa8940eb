"""Chooses the device that weights are streamed to, and moves buffers there."""

from __future__ import annotations

import re

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.machine.device_ops import DeviceOps, device_ops, ops_on
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight


def streaming_device(owner: str, asked: str, weights: list[TrainedWeight]) -> DeviceOps:
    """Operations of the model's device, or of the CUDA device to stream host weights to.

    Raises
    ------
    InvalidArgument, Unavailable
        There is no such device.
    """
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


def move_buffers(training: Training) -> None:
    """Move the model's buffers to a CUDA device that weights are streamed to.

    Raises
    ------
    InvalidArgument
        A frozen parameter is not on the device; nothing was moved.
    """
    if not training.device.asynchronous:
        return
    device = training.device.name
    trained = {id(w.parameter) for w in training.weights}
    for name, p in training.model.named_parameters():
        if id(p) not in trained and str(p.device) != device:
            raise InvalidArgument(
                f"{training.owner}: {name} is frozen and on {p.device}, expected {device}, since "
                "only trained weights are streamed; move it there"
            )
    for module in training.model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
