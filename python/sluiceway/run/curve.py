"""A curve of a run: values over steps, tokens and seconds, smoothed and thinned for drawing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Curve(NamedTuple):
    """Points as columns: step, tokens and seconds up to its end, and value; NaN leaves a gap."""

    step: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    value: np.ndarray

    @property
    def finite(self) -> np.ndarray:
        """Values that are numbers."""
        return self.value[np.isfinite(self.value)]

    def smoothed(self, window: int) -> Curve:
        """Return running means over `window` points, fewer at the start; a gap stays a gap."""
        sums = np.cumsum(self.finite)
        sums[window:] -= sums[:-window].copy()
        means = np.full(len(self.value), np.nan)
        means[np.isfinite(self.value)] = sums / np.minimum(np.arange(len(sums)) + 1, window)
        return self._replace(value=means)

    def thinned(self, most: int) -> Curve:
        """Return at most `most` points: the lowest and highest of each stretch, and both ends."""
        last = len(self.value) - 1
        if last < most:
            return self
        kept = {0, last}
        for stretch in np.array_split(np.arange(1, last), max(1, most // 2 - 1)):
            finite = stretch[np.isfinite(self.value[stretch])]
            heights = self.value[finite]
            found = [finite[heights.argmin()], finite[heights.argmax()]] if len(finite) else []
            kept.update(found or stretch[:1])
        return Curve(*(column[sorted(kept)] for column in self))


def rounded(values: np.ndarray) -> list[float | int | None]:
    """Round to the seven digits of a float32, but for whole numbers; None for NaN."""
    return [
        None if math.isnan(v) else int(v) if v % 1 == 0 else float(f"{v:.7g}")
        for v in values.tolist()
    ]
