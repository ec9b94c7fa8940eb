"""Axes: positions of values, and the round numbers along them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluiceway.report import units

# Beyond this ratio a linear axis would show the largest value alone.
_LOG_RATIO = 100.0
# Smallest range relative to the values: with four digits, narrower ticks would look equal.
_LEAST_SPAN = 0.01


@dataclass(frozen=True)
class Axis:
    """A range of values and its ticks.

    Parameters
    ----------
    low, high : float
        Ends; `low < high`, and `low > 0` on a logarithmic axis.
    ticks : list of (float, str)
        Values in rising order, with their texts.
    """

    low: float
    high: float
    ticks: list[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """Position of a value: 0 at the low end, 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return (value - low) / (high - low)


def make_axis(
    values: Iterable[float],
    text: Callable[[float], str],
    *,
    from_zero: bool = False,
    may_be_log: bool = False,
    exact_end: bool = False,
    most: int = 5,
) -> Axis:
    """Make an axis that covers all values.

    Parameters
    ----------
    from_zero : bool
        Begin at 0.
    may_be_log : bool
        Choose a logarithmic axis for positive values that lie far apart.
    exact_end : bool
        Leave no margin around the values.
    most : int
        Approximate number of ticks.
    """
    finite = list(values) or [0.0]
    low, high = min(finite), max(finite)
    if may_be_log and low > 0 and high / low > _LOG_RATIO:
        return _log_axis(low, high, text)
    if from_zero:
        low = min(0.0, low)
    least = _LEAST_SPAN * max(abs(low), abs(high)) or 1.0
    if high - low < least:
        middle = low + least / 2 if from_zero else (low + high) / 2
        low, high = min(low, middle - least / 2), max(high, middle + least / 2)
    unit = _unit(high, text)
    step = _round_step((high - low) / most / unit) * unit
    if text in (units.count, units.size):  # No half bytes.
        step = max(1.0, step)
    margin = 0.0 if exact_end else 0.05 * (high - low)
    begin, end = low - (0.0 if from_zero and low == 0 else margin), high + margin
    ticks = [
        step * i for i in range(math.ceil(begin / step - 1e-9), math.floor(end / step + 1e-9) + 1)
    ]
    return Axis(begin, end, [(tick, text(tick)) for tick in ticks])


def _log_axis(low: float, high: float, text: Callable[[float], str]) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first + 4) // 5)
    ticks = [10.0**i for i in range(first, last + 1, every)]
    return Axis(10.0**first, 10.0**last, [(t, text(t)) for t in ticks], log=True)


def _unit(high: float, text: Callable[[float], str]) -> float:
    """Unit whose round multiples the ticks are: a power of 1024 for sizes, of 60 for times."""
    if text is units.size:
        return 1024.0 ** max(0, int(math.log(max(high, 1.0), 1024)))
    if text is units.seconds and high >= 120:
        return 3600.0 if high >= 7200 else 60.0
    return 1.0


def _round_step(rough: float) -> float:
    """Smallest number of the form 1, 2 or 5 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((m * power for m in (1, 2, 5) if m * power >= rough * (1 - 1e-9)), 10 * power)
