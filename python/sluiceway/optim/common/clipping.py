"""Clips gradients of any weights by their norm of order 2 or inf, wherever the gradients are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.optim.common.ordinary import gradient_norms
from sluiceway.optim.common.parameters import check_number


def norm_and_factor(
    norms: Iterable[float],
    gradients: list[torch.Tensor],
    max_norm: float,
    order: float,
    scale: float,
) -> tuple[float, float]:
    """Return the common norm of some gradients, and the factor that clips them.

    `norms` has those of compressed gradients, `gradients` are the ordinary ones, and `scale` undoes
    the loss scale of all.
    """
    found = [0.0, *norms, *gradient_norms(gradients, order).tolist()]
    total = scale * torch.tensor(found, dtype=torch.float64).norm(order).item()
    # step() skips gradients that are not finite, so their factor does not matter.
    return total, min(1.0, max_norm / (total + 1e-6)) if math.isfinite(total) else 1.0


def check_clipping(owner: str, max_norm: Any, norm_type: Any, configured: float | None) -> float:
    """Refuse a norm that cannot clip; return the order of the norm as a number."""
    caller = f"{owner}.clip_grad_norm_"
    check_number(caller, "max_norm", max_norm)
    if configured is not None:
        raise InvalidArgument(
            f"{caller}: max_norm={configured:g} of the constructor clips in step() already; "
            "make the optimizer without max_norm to clip here"
        )
    try:
        order = float(norm_type)
    except (TypeError, ValueError):
        order = math.nan
    if order not in (2.0, math.inf):
        raise Unavailable(
            f"{caller}: norm_type is {norm_type!r}, expected 2 or inf, because only the sum of "
            "squares and the largest element of a compressed gradient are known"
        )
    return order


def split_parameters(
    owner: str, parameters: Iterable[torch.Tensor] | torch.Tensor, compressed: list[torch.Tensor]
) -> tuple[set[int], list[torch.Tensor]]:
    """Return the numbers of the compressed weights in `parameters`, and the other gradients."""
    number_of = {id(p): i for i, p in enumerate(compressed)}
    numbers, gradients = set(), {}
    for p in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
        if not isinstance(p, torch.Tensor):
            raise InvalidArgument(
                f"{owner}.clip_grad_norm_: parameters holds a {type(p).__name__}, expected "
                "parameters of the model"
            )
        if id(p) in number_of:
            numbers.add(number_of[id(p)])
        elif p.grad is not None:
            gradients[id(p)] = p.grad
    return numbers, list(gradients.values())
