"""Products of groups of rows, as experts compute them, of tensors that have shapes but no bytes.

torch's own rule for such tensors takes bf16 alone, and its counter of operations knows no groups.
"""

from __future__ import annotations

from typing import Any

import torch

# A torch that does not have it computes experts in another way, and None is no operation of it.
GROUPED_PRODUCT = getattr(torch.ops.aten, "_grouped_mm", None)


def grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A tensor of the shape of the product: a matrix for each group, unless groups share one.

    Parameters
    ----------
    a, b : torch.Tensor
        3-D: a matrix for each group; 2-D: the groups are parts of one matrix.
    offs : torch.Tensor
        Where each part ends.
    bias : None
        Not there yet in torch.
    out_dtype : torch.dtype
        By default that of `a`.
    """
    shape = [a.shape[-2], b.shape[-1]]
    if a.dim() == b.dim():
        shape.insert(0, len(a) if a.dim() == 3 else len(offs))
    return a.new_empty(shape, dtype=out_dtype)


def grouped_flops(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Operations: every part of a matrix is in one group."""
    groups = len(a) if a.dim() == b.dim() == 3 else 1
    return 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]
