"""A curve of a run: values over steps, tokens and seconds, thinned and smoothed for drawing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate

Value = float | int | None  # None: not a finite number.


@dataclass(frozen=True)
class Curve:
    """Points of a curve, as columns of equal length.

    Parameters
    ----------
    steps, tokens, seconds : list
        Step, tokens so far and seconds in steps so far at each point; they never decrease.
    values : list
        None leaves a gap.
    """

    steps: list[int]
    tokens: list[int]
    seconds: list[float]
    values: list[Value]

    def add(self, step: int, tokens: int, seconds: float, value: Value) -> None:
        """Append one point."""
        self.steps.append(step)
        self.tokens.append(tokens)
        self.seconds.append(seconds)
        self.values.append(value)

    @property
    def finite(self) -> list[float]:
        """Return the values that are numbers."""
        return [value for value in self.values if value is not None]

    def summed(self) -> Curve:
        """Return the curve of cumulative sums of the values."""
        sums = list(accumulate(value or 0 for value in self.values))
        return Curve(self.steps, self.tokens, self.seconds, sums)

    def smoothed(self, window: int) -> Curve:
        """Return running means over `window` points, fewer at the start; a gap stays a gap."""
        recent: deque[float] = deque()
        total, means = 0.0, []
        for value in self.values:
            if value is None:
                means.append(None)
                continue
            recent.append(value)
            total += value
            if len(recent) > window:
                total -= recent.popleft()
            means.append(total / len(recent))
        return Curve(self.steps, self.tokens, self.seconds, means)

    def thinned(self, most: int) -> Curve:
        """Return at most `most` points: the lowest and highest of each stretch, and both ends."""
        if len(self.values) <= most:
            return self
        inner, stretches = len(self.values) - 2, max(1, (most - 2) // 2)
        kept = [0]
        for i in range(stretches):
            begin, end = (1 + inner * j // stretches for j in (i, i + 1))
            places = [j for j in range(begin, end) if self.values[j] is not None]
            if places:
                low = min(places, key=lambda j: self.values[j])
                high = max(places, key=lambda j: self.values[j])
                # All values are equal: the first one represents the stretch.
                kept += sorted({low, high}) if self.values[low] != self.values[high] else [low]
            elif begin < end:
                kept.append(begin)
        kept.append(len(self.values) - 1)
        columns = (self.steps, self.tokens, self.seconds, self.values)
        return Curve(*([column[j] for j in kept] for column in columns))
