"""Norms of gradients, taken on their device and read together."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def gradient_norms(gradients: Sequence[torch.Tensor], order: float = 2.0) -> torch.Tensor:
    """The norm of each, in float64 on the host; not finite only where a gradient is not.

    Taken in float32, and once more in float64 where squares left its range, from 1.8e19 on. Each
    time waits once for the device.
    """
    if not gradients:
        return torch.zeros(0, dtype=torch.float64)

    def taken(dtype: torch.dtype) -> torch.Tensor:
        # A kernel for many gradients, where one each would take longer to launch than to run.
        return torch.stack(torch._foreach_norm(gradients, order, dtype=dtype)).cpu()

    norms = taken(torch.float32)
    return norms.double() if norms.isfinite().all() else taken(torch.float64)
