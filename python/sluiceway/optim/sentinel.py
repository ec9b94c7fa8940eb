"""The gradient that stands in for all compressed ones, so that clipping and AMP see their norm.

Compressed weights have no `.grad`. `clip_grad_norm_` would then not clip and `GradScaler` would
refuse to run. So the smallest compressed weight carries a gradient of zeros but for two elements,
0.6 and 0.8 of the norm of all compressed gradients together. Whoever scales gradients scales it,
and `factor()` reads back by how much; if the two elements no longer stand 3 : 4, somebody clipped
by value, which has no meaning for compressed gradients. What else it cannot carry: norms of other
orders, which clip/sentinel_gradient.py refuses, and factors that differ from weight to weight,
which clip/clip_witness.py notices where ordinary gradients tell of them.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.optim.clip.sentinel_gradient import SentinelGradient

_PARTS = (0.6, 0.8)


class Sentinel:
    """The stand-in gradient of one parameter.

    Parameters
    ----------
    parameter : torch.nn.Parameter
        The smallest compressed weight, m x n with m n >= 2.
    owner : str
        The optimizer's name, for errors.
    """

    def __init__(self, parameter: nn.Parameter, owner: str) -> None:
        self.parameter = parameter
        self._owner = owner
        self._grad: torch.Tensor | None = None
        self._written: tuple[float, float] = (0.0, 0.0)
        self._stands = False
        if parameter.dtype != torch.float32:
            parameter.grad_dtype = torch.float32  # A 16-bit gradient would round the norm.

    def place(self, norm: float) -> None:
        """Make `parameter.grad` carry `norm`; zeros elsewhere."""
        if self._grad is None:
            self._grad = torch.zeros_like(self.parameter, dtype=torch.float32)
        else:
            self._grad.zero_()
        flat = self._grad.view(-1)
        flat[0], flat[1] = _PARTS[0] * norm, _PARTS[1] * norm
        self._written = (flat[0].item(), flat[1].item())
        self.parameter.grad = self._grad.as_subclass(SentinelGradient)
        self._stands = True

    def stands_at(self, parameter: torch.Tensor) -> bool:
        """Whether `parameter.grad` is the sentinel, or what somebody computed from it."""
        return self._stands and parameter is self.parameter

    def remove(self) -> None:
        """Take it away, if it is there."""
        if self._stands:
            self.parameter.grad = None
            self._stands = False

    def release(self) -> None:
        """Leave the parameter as it was found."""
        self.remove()
        if self.parameter.dtype != torch.float32:
            self.parameter.grad_dtype = self.parameter.dtype

    def vanished(self) -> bool:
        """Whether it was taken away or zeroed by somebody else: `model.zero_grad()`."""
        if not self._stands or self.parameter.grad is None:
            return True
        return self._written[0] != 0 and self.parameter.grad.reshape(-1)[0].item() == 0

    def factor(self) -> float:
        """By how much the sentinel was scaled since it was placed; NaN or inf after overflow.

        Raises
        ------
        InvalidArgument
            Its two elements were scaled differently, or rounded.
        """
        gradient = self.parameter.grad
        if gradient.dtype != torch.float32:
            raise InvalidArgument(
                f"{self._owner}.step: gradients were converted to {gradient.dtype} after backward, "
                "expected float32 where they stand for compressed ones; convert the model between "
                "steps"
            )
        first, second = gradient.reshape(-1)[:2].tolist()
        before, before_second = self._written
        if before == 0:
            return 1.0
        factor, other = first / before, second / before_second
        if math.isfinite(factor) and abs(factor - other) > 1e-4 * abs(factor):
            raise InvalidArgument(
                f"{self._owner}.step: gradients were scaled by {factor:.6g} in one element and "
                f"{other:.6g} in another, expected one factor for all; clip by norm, not by value"
            )
        return factor
