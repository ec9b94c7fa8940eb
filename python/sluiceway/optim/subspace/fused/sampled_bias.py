"""Estimates the relative bias of projectors on gradients that are never formed, from some tokens.

With Y and X of T tokens each and G = Y^T X, for any A and B with one row per token,

    |A^T B|^2 = sum over pairs of tokens t, u of (A A^T)_tu (B B^T)_tu

so that |G|^2 follows from Y and X, |P^T G Q|^2 from Y P and X Q, and |P P^T G Q Q^T|^2 from
Y P P^T and X Q Q^T; the last two are equal if columns are orthonormal. The bias
b = P P^T G Q Q^T - G then has

    |b|^2 = |P P^T G Q Q^T|^2 - 2 |P^T G Q|^2 + |G|^2

A sample of the tokens gives the sums over t = u and over t != u, which are each scaled to all T
tokens. Without this scaling the result would be the bias of a few tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from sluiceway.machine.device_ops import Made

_TOKENS = 256  # Tokens of a measurement, or a few more.
_WEIGHTS = 4  # Weights measured in a step, in turns.

Sides = tuple[torch.Tensor, torch.Tensor]


def sampled(rows: torch.Tensor) -> torch.Tensor:
    """Return evenly spaced rows of a tensor with one token a row, or all rows if they are few."""
    rows = rows.reshape(-1, rows.shape[-1])
    stride = max(1, len(rows) // _TOKENS)
    return rows[stride // 2 :: stride]


def relative_bias(whole: Sides, core: Sides, back: Sides | None, tokens: int) -> torch.Tensor:
    """Compute |b| / |G| without waiting for the device.

    Parameters
    ----------
    whole : tuple of torch.Tensor
        Y and X of sampled tokens.
    core : tuple of torch.Tensor
        Y P and X Q of the same tokens.
    back : tuple of torch.Tensor, optional
        Y P P^T and X Q Q^T; None if columns are orthonormal.
    tokens : int
        Number of all tokens.
    """
    gradient, inner = sum_of_squares(whole, tokens), sum_of_squares(core, tokens)
    outer = inner if back is None else sum_of_squares(back, tokens)
    return ((outer - 2 * inner + gradient).clamp_min(0) / gradient).sqrt()


def sum_of_squares(sides: Sides, tokens: int) -> torch.Tensor:
    """Estimate |A^T B|^2 of all tokens from the sides of the sampled ones."""
    a, b = (side.float() for side in sides)
    products = (a @ a.t()).mul_(b @ b.t())
    itself = products.diagonal().sum(dtype=torch.float64)
    others = products.sum(dtype=torch.float64) - itself
    count = len(a)
    if count > 1:
        others = others * (tokens * (tokens - 1) / (count * (count - 1)))
    return itself * (tokens / count) + others


class SampledBias:
    """Bias measured on the fused layers of an optimizer, a few layers in each step.

    A step's measurements are read one step later, so that no step waits for the device.

    Parameters
    ----------
    measures : bool
        If False, the engine measures the bias on formed gradients, and no layer has a turn here.

    Attributes
    ----------
    last : float or None
        Mean of the measurements of the step before the last one.
    by_weight : dict of str to float
        The last measurement of each weight.
    """

    def __init__(self, measures: bool = True) -> None:
        self._measures = measures
        self.last: float | None = None
        self.by_weight: dict[str, float] = {}
        self._layers = 0
        self._measured: list[tuple[str, Made]] = []
        self._earlier: list[tuple[str, Made]] = []

    def join(self) -> int:
        """Count one more layer, and return its place in the turns."""
        self._layers += 1
        return self._layers - 1

    def leave(self) -> None:
        """Forget all layers, but keep the measurements of their bias."""
        self._layers = 0

    def drop(self) -> None:
        """Drop this step's measurements, because its gradients are dropped."""
        self._measured = []

    def due(self, place: int, step: int) -> bool:
        """Return whether it is the layer's turn in this step."""
        return self._measures and (place - step * _WEIGHTS) % self._layers < _WEIGHTS

    def note(self, name: str, bias: torch.Tensor) -> None:
        """Add the bias of a weight that was measured in this step."""
        self._measured.append((name, Made(bias)))

    def end_step(self) -> None:
        """Read the measurements of the step before this one."""
        names = [name for name, _ in self._earlier]
        biases = [bias.take() for _, bias in self._earlier]
        found = list(zip(names, torch.stack(biases).tolist() if biases else [], strict=True))
        self._earlier, self._measured = self._measured, []
        found = [(name, bias) for name, bias in found if math.isfinite(bias)]
        self.by_weight.update(found)
        self.last = _mean([bias for _, bias in found])

    def summary(self) -> dict[str, float | int] | None:
        """Return the mean of the last measurements and the number of weights; None without any."""
        mean = _mean(list(self.by_weight.values()))
        return None if mean is None else {"mean": mean, "weights": len(self.by_weight)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
