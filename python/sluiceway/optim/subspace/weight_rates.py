"""Learning rates of compressed weights by their size: what `weight_rates` stands for.

    k_w = RMS(W_w) / mean RMS(W)        the mean over all elements, weights as training begins

The rate of weight w, of its core and of its residual, is k_w times that of its group, and its decay
is that of the group. k is within [1/4, 4]. A weight of zeros, or one that is not finite, has 1 and
no part in the mean, as its size says nothing.
Adafactor scales steps likewise [arXiv 1804.04235, section 8], each by its weight's size as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

_LEAST, _MOST = 0.25, 4.0


@torch.no_grad()
def weight_factors(matrices: Sequence[torch.Tensor]) -> list[float]:
    """k of each matrix; each is read once."""
    if not matrices:
        return []
    norms = [torch.linalg.vector_norm(m, dtype=torch.float32) for m in matrices]
    sizes = [m.numel() for m in matrices]
    norms = torch.stack([n.to(norms[0].device) for n in norms]).tolist()
    rms = [norm / math.sqrt(size) for norm, size in zip(norms, sizes, strict=True)]
    rms = [r if math.isfinite(r) else 0.0 for r in rms]
    known = sum(size for r, size in zip(rms, sizes, strict=True) if r)
    mean = sum(r * size for r, size in zip(rms, sizes, strict=True)) / max(known, 1)
    return [min(max(r / mean, _LEAST), _MOST) if r else 1.0 for r in rms]


def with_factors(
    hypers: Iterable[tuple[float, ...]], factors: Sequence[float]
) -> list[tuple[float, ...]]:
    """lr, beta1, beta2, eps and weight_decay of each weight, and what follows, at its own rate."""
    return [
        (k * lr, beta1, beta2, eps, decay / k, *more)
        for (lr, beta1, beta2, eps, decay, *more), k in zip(hypers, factors, strict=True)
    ]
