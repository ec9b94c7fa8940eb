"""Learning rates of compressed weights by their size, for the option `weight_rates`.

    k_w = RMS(W_w) / mean RMS(W)        the mean over all elements, weights as training begins

Weight w trains its core and its residual with k_w times its group's learning rate, and decays as
its group says. k is within [1/4, 4]. A weight that is all zeros or not finite has k = 1 and does
not count in the mean, because its size says nothing.
Adafactor scales steps likewise [arXiv 1804.04235, section 8], but by each weight's current size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

_LEAST, _MOST = 0.25, 4.0


@torch.no_grad()
def weight_factors(matrices: Sequence[torch.Tensor]) -> list[float]:
    """Return the factor k of each matrix, which is read once."""
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
    """Multiply each weight's lr by its factor and divide its weight_decay by it."""
    return [
        (k * lr, beta1, beta2, eps, decay / k, *more)
        for (lr, beta1, beta2, eps, decay, *more), k in zip(hypers, factors, strict=True)
    ]
