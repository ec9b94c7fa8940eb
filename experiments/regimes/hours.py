"""Estimates the seconds of one core that runs take, from earlier runs or else by a guess."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from experiments.fidelity.row_lines import Row
from experiments.regimes.fine_tunes import Run, asked_for

# The guess fits the rows of results/, to 10 %: two cores of a shared EPYC, the small model.
STEP_SECONDS, TOKEN_SECONDS = 0.012, 85e-6
LOOK_SECONDS = 3.5  # Seconds to read the data, and to evaluate one held-out part.


class Hours:
    """Estimates the time of future runs from rows."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._seconds: dict[object, list[float]] = {}
        for row in rows:
            run = asked_for(row)
            for shape in _shapes(run):
                self._seconds.setdefault(shape, []).append(row["core_seconds"])

    def seconds(self, run: Run) -> float:
        """Seconds of the same method in the same shape, else of any method there, else a guess."""
        for shape in _shapes(run):
            if shape in self._seconds:
                return statistics.fmean(self._seconds[shape])
        return LOOK_SECONDS + run.steps * (STEP_SECONDS + run.tokens * TOKEN_SECONDS)

    def guessed(self, runs: Iterable[Run]) -> int:
        """Count the runs whose time is only guessed."""
        return sum(not any(shape in self._seconds for shape in _shapes(run)) for run in runs)

    def hours(self, runs: Iterable[Run]) -> float:
        """Return the core-hours of all runs together."""
        return sum(map(self.seconds, runs)) / 3600


def _shapes(run: Run) -> tuple[object, object]:
    """Properties that decide the time, from the most specific to the least."""
    shape = (run.tokens, run.accumulate, run.steps, run.dtype)
    return (*shape, run.way), shape
