"""The relative estimation bias of projectors on gradients that nobody forms, from some tokens.

With Y and X of T tokens each and G = Y^T X, for any A with a row a token and B likewise,

    |A^T B|^2 = sum over pairs of tokens t, u of (A A^T)_tu (B B^T)_tu

so that |G|^2 comes of Y and X, |P^T G Q|^2 of Y P and X Q, and |P P^T G Q Q^T|^2 of Y P P^T and
X Q Q^T; the last two are equal where columns are orthonormal. Of b = P P^T G Q Q^T - G then

    |b|^2 = |P P^T G Q Q^T|^2 - 2 |P^T G Q|^2 + |G|^2

Of a sample of the tokens the sums over t = u and over t != u are scaled to those of all T: without
that the bias of few tokens would be taken for that of many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from sluiceway.machine.device_ops import Made

_TOKENS = 256  # Of a measurement, or a few more.
_WEIGHTS = 4  # Measured in a step, in turns.

Sides = tuple[torch.Tensor, torch.Tensor]


def sampled(rows: torch.Tensor) -> torch.Tensor:
    """Evenly spaced tokens of a tensor with one a row; all of them where there are few."""
    rows = rows.reshape(-1, rows.shape[-1])
    stride = max(1, len(rows) // _TOKENS)
    return rows[stride // 2 :: stride]


def relative_bias(whole: Sides, core: Sides, back: Sides | None, tokens: int) -> torch.Tensor:
    """|b| / |G|, without waiting for the device.

    Parameters
    ----------
    whole : tuple of torch.Tensor
        Y and X of sampled tokens.
    core : tuple of torch.Tensor
        Y P and X Q of the same.
    back : tuple of torch.Tensor, optional
        Y P P^T and X Q Q^T; None: columns are orthonormal.
    tokens : int
        How many there are in all.
    """
    gradient, inner = sum_of_squares(whole, tokens), sum_of_squares(core, tokens)
    outer = inner if back is None else sum_of_squares(back, tokens)
    return ((outer - 2 * inner + gradient).clamp_min(0) / gradient).sqrt()


def sum_of_squares(sides: Sides, tokens: int) -> torch.Tensor:
    """|A^T B|^2 of all tokens, from `sides` of those that were sampled."""
    a, b = (side.float() for side in sides)
    products = (a @ a.t()).mul_(b @ b.t())
    itself = products.diagonal().sum(dtype=torch.float64)
    others = products.sum(dtype=torch.float64) - itself
    count = len(a)
    if count > 1:
        others = others * (tokens * (tokens - 1) / (count * (count - 1)))
    return itself * (tokens / count) + others


class SampledBias:
    """What was measured of the fused layers of an optimizer, a few of them in each step.

    What is measured is read one step later, so that no step waits for the device.

    Parameters
    ----------
    measures : bool
        False: gradients are formed to measure it by, and no layer ever has its turn.

    Attributes
    ----------
    last : float or None
        Mean of what the step before the last one has measured.
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
        """One layer more; its place in the turns."""
        self._layers += 1
        return self._layers - 1

    def leave(self) -> None:
        """No layer is left; what they measured stays."""
        self._layers = 0

    def drop(self) -> None:
        """The gradients of this step are given up."""
        self._measured = []

    def due(self, place: int, step: int) -> bool:
        """Return whether a layer has its turn in a step."""
        return self._measures and (place - step * _WEIGHTS) % self._layers < _WEIGHTS

    def note(self, name: str, bias: torch.Tensor) -> None:
        """A weight's was measured in this step."""
        self._measured.append((name, Made(bias)))

    def end_step(self) -> None:
        """Read what the step before this one has measured."""
        names = [name for name, _ in self._earlier]
        biases = [bias.take() for _, bias in self._earlier]
        found = list(zip(names, torch.stack(biases).tolist() if biases else [], strict=True))
        self._earlier, self._measured = self._measured, []
        found = [(name, bias) for name, bias in found if math.isfinite(bias)]
        self.by_weight.update(found)
        self.last = _mean([bias for _, bias in found])

    def summary(self) -> dict[str, float | int] | None:
        """The mean of the last measurements, and of how many weights; None: there was none."""
        mean = _mean(list(self.by_weight.values()))
        return None if mean is None else {"mean": mean, "weights": len(self.by_weight)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
