"""Compare the step times of runs that took turns with those of native.

The median of its steps stands for a turn. A round holds one turn of every way, so a disturbance of
a whole round cancels in its ratio. A disturbance of a turn or two spoils one round of many, which
the median over rounds ignores.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Rounds = Mapping[int, Sequence[float]]  # Seconds of the steps that count, by the round's number.


@dataclass(frozen=True)
class TurnRatio:
    """Ratio of step times: its median over rounds, and the bounds of the rounds' middle half."""

    median: float
    low: float
    high: float


def turn_ratio(way: Rounds, native: Rounds) -> TurnRatio:
    """Compare two ways in every round that has steps of both.

    Raises
    ------
    ValueError
        No round has steps of both.
    """
    ratios = sorted(
        statistics.median(way[number]) / statistics.median(native[number])
        for number in way
        if number in native
    )
    if not ratios:
        raise ValueError("turn_ratio: no round has steps of both ways")
    if len(ratios) == 1:
        return TurnRatio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return TurnRatio(median, low, high)
