"""Computes updates of weights from two losses, with the same roundings as the scalar log."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import torch

from sluiceway.errors import InvalidArgument

_LEAST_NORMAL = torch.finfo(torch.float32).tiny


def as_float(value: float) -> float:
    """Round to float32; infinite if the number is too large."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def checked_loss(owner: str, value: Any) -> float:
    """Return a closure's result as a float32.

    Raises
    ------
    InvalidArgument
        The result is not a scalar.
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
    """Mean of losses in float32: their sum in order, divided by their number."""
    values = torch.tensor(losses, dtype=torch.float32)
    total = values[0]
    for value in values[1:]:
        total = total + value
    return (total / len(losses)).item()


def projected_gradient(plus: float, minus: float, eps: float) -> float:
    """Compute (L+ - L-) / (2 eps), with each operation in float32."""
    losses = torch.tensor([plus, minus, eps], dtype=torch.float32)
    return ((losses[0] - losses[1]) / (losses[2] + losses[2])).item()


@dataclass(frozen=True)
class GroupUpdate:
    """Effect of a step on the weights of a parameter group."""

    gamma: float  # Gamma after the step, in double.
    scales: list[float]  # c of each direction.


def group_update(owner: str, group: dict[str, Any], gradients: list[float]) -> GroupUpdate:
    """Compute the update of a parameter group in one step.

    Raises
    ------
    InvalidArgument
        Learning rate or weight decay are out of range, or the result is not a normal float32.
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
