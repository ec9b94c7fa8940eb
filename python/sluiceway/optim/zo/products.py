"""Perturbs a matrix by extra products in its layer, without ever copying the matrix.

    y = x W^T + b + s (x V) U^T                nn.Linear, W and s U V^T of m x n, x of n columns
    y = b + x W   + s (x U) V^T                transformers' Conv1D, whose W has inputs as rows

Both halves of every direction read the same W, and a direction stores U alone. For functions other
than these products, W + s U V^T is computed, together with the matrix of the other half.

Numerics: In f32, each element of y is within gamma_k (|x| |W|^T + |b| + |s| |x| |V| |U|^T) of the
          exact one, with k = n + rank + 2, gamma_k = k u / (1 - k u) and u = 2^-24, if the device
          computes products in f32; copies of W + s U V^T have the same bound. With 16 bits, or
          under autocast, factors and x V are rounded to the type of y, the product is added in
          f32, and y is rounded twice; W + s U V^T is not rounded, while copies are.
Cost:     2 rank T (m + n) flop for T rows of x. x is read, and y is read and written, once more:
          about (n + 2 m) T elements. Copies take 3 m n per direction, and 2 m n of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sluiceway.optim.subspace.fused.fused_layer import why_not_fused

_LINEAR = ("input", "weight", "bias")


@dataclass(frozen=True)
class LowRankMatrix:
    """The matrix W + s L^T R, known by its products.

    Parameters
    ----------
    parameter : torch.nn.Parameter
        The parameter that functions of torch get in place of this matrix.
    weight : torch.Tensor
        W, m x n.
    left, right : torch.Tensor
        L and R, k x m and k x n, float32.
    scale : float
        s.
    materialise : callable
        Computes the sum itself.
    """

    parameter: nn.Parameter
    weight: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    scale: float
    materialise: Callable[[], torch.Tensor]

    def product(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute a function that is the product of a layer; NotImplemented for all others."""
        if func is functional.linear:
            given = dict(zip(_LINEAR, args, strict=False)) | kwargs
            x, bias = given["input"], given.get("bias")
            if given["weight"] is self.parameter and self._is_plain(x):
                y = functional.linear(x, self.weight, bias)
                return self._add(y, x, self.right, self.left)
        if func is torch.addmm and len(args) == 3 and not kwargs:
            bias, x, weight = args
            if weight is self.parameter and self._is_plain(x):
                return self._add(torch.addmm(bias, x, self.weight), x, self.left, self.right)
        return NotImplemented

    def _is_plain(self, x: torch.Tensor) -> bool:
        """Tell whether `x` is an ordinary tensor; subclasses may define the product otherwise."""
        return type(x) in (torch.Tensor, nn.Parameter) and x is not self.parameter

    def _add(
        self, y: torch.Tensor, x: torch.Tensor, inwards: torch.Tensor, outwards: torch.Tensor
    ) -> torch.Tensor:
        """Compute y + s (x inwards^T) outwards in place of y, which no other tensor shares."""
        rows = x.reshape(-1, x.shape[-1]).to(y.dtype)
        sums = y.reshape(-1, y.shape[-1])
        sums.addmm_(
            functional.linear(rows, inwards.to(y.dtype)), outwards.to(y.dtype), alpha=self.scale
        )
        return sums.view(y.shape)


def is_read_by_products(p: torch.Tensor, modules: list[nn.Module]) -> bool:
    """Tell whether all modules of a parameter are known to read it only in these products."""
    return p.dim() == 2 and p.numel() > 0 and not any(map(why_not_fused, modules))
