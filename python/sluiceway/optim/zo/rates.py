"""From two losses to what is added to the weights; the roundings are those of the scalar log."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import torch

from sluiceway.errors import InvalidArgument

_LEAST_NORMAL = torch.finfo(torch.float32).tiny


def as_float(value: float) -> float:
    """Rounded to float32; infinite where that has no such number."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def checked_loss(owner: str, value: Any) -> float:
    """The float32 that a closure returned.

    Raises
    ------
    InvalidArgument
        It is no scalar.
    """
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
        return value.detach().to(torch.float32).item()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return as_float(value)
    found = (
        f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
        if isinstance(value, torch.Tensor)
        else repr(value)
    )
    raise InvalidArgument(
        f"{owner}.step: the closure returned {found}, expected the loss as a scalar; return "
        "loss.mean(), or model(...).loss"
    )


def mean_of_closures(losses: list[float]) -> float:
    """In float32: the sum in their order, divided by their number."""
    values = torch.tensor(losses, dtype=torch.float32)
    total = values[0]
    for value in values[1:]:
        total = total + value
    return (total / len(losses)).item()


def projected_gradient(plus: float, minus: float, eps: float) -> float:
    """(L+ - L-) / (2 eps), each operation in float32."""
    losses = torch.tensor([plus, minus, eps], dtype=torch.float32)
    return ((losses[0] - losses[1]) / (losses[2] + losses[2])).item()


@dataclass(frozen=True)
class GroupUpdate:
    """What a step does to the weights of a parameter group."""

    gamma: float  # Gamma after it, in double.
    scales: list[float]  # c of each direction.


def group_update(owner: str, group: dict[str, Any], gradients: list[float]) -> GroupUpdate:
    """Of one step.

    Raises
    ------
    InvalidArgument
        A learning rate or a decay that cannot be, or whose result no float32 holds.
    """
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    if not (0 <= lr < math.inf and 0 <= decay < math.inf and lr * decay < 1):
        raise InvalidArgument(
            f"{owner}.step: lr is {lr} and weight_decay {decay}, expected finite numbers of at "
            "least 0 whose product is below 1, since weights are multiplied by 1 - lr weight_decay"
        )
    gamma = group["gamma"] * (1 - lr * decay)
    scales = [as_float(-(lr * g) / (len(gradients) * gamma)) for g in gradients]
    if as_float(gamma) < _LEAST_NORMAL or not all(map(math.isfinite, scales)):
        raise InvalidArgument(
            f"{owner}.step: lr {lr} and weight_decay {decay} make an update of {scales} and leave "
            f"{gamma} of the weights, expected normal numbers of float32; lower lr"
        )
    return GroupUpdate(gamma, scales)
