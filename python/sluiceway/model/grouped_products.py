"""Grouped matrix products, which experts compute, for tensors with shapes but no bytes.

torch's own rule for such tensors accepts bf16 alone, and its flop counter does not know groups.
"""

from __future__ import annotations

from typing import Any

import torch

# A torch without this operation computes experts in another way, so None matches none of its calls.
GROUPED_PRODUCT = getattr(torch.ops.aten, "_grouped_mm", None)


def grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a tensor in the shape of the product, with a matrix per group unless groups share one.

    Parameters
    ----------
    a, b : torch.Tensor
        3-D: a matrix for each group; 2-D: the groups are parts of one matrix.
    offs : torch.Tensor
        End of each part.
    bias : None
        Not implemented in torch yet.
    out_dtype : torch.dtype
        The type of `a` by default.
    """
    shape = [a.shape[-2], b.shape[-1]]
    if a.dim() == b.dim():
        shape.insert(0, len(a) if a.dim() == 3 else len(offs))
    return a.new_empty(shape, dtype=out_dtype)


def grouped_flops(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count operations of a product in which each part of a matrix belongs to one group."""
    groups = len(a) if a.dim() == b.dim() == 3 else 1
    return 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]
