"""Compute differences of held-out losses, paired by seed, with their errors."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from experiments.fidelity.stages import Found
from experiments.fidelity.tables import shares
from experiments.regimes.fine_tunes import Run

# Student's t at 95 %, in standard errors, by degrees of freedom.
SURE = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass(frozen=True)
class Difference:
    """A mean over pairs; negative if the first of each pair is better."""

    mean: float
    error: float | None  # Standard error of the mean; None for one pair.
    pairs: int

    @property
    def sure(self) -> bool:
        """Tell whether at most one in twenty of pure noise would be as large."""
        return self.error is not None and abs(self.mean) > self.margin

    @property
    def margin(self) -> float:
        """Half of the interval that holds 95 %; 0 for one pair."""
        return SURE[self.pairs - 1] * self.error if self.error is not None else 0.0


def paired(found: Found, mine: list[Run], theirs: list[Run]) -> Difference | None:
    """Loss of `mine` less that of `theirs`, seed by seed; None while a run is missing.

    Raises
    ------
    ValueError
        The runs of a pair had different starts, text orders or held-out texts.
    """
    values = paired_values(found, mine, theirs)
    return None if values is None else difference(values)


def paired_values(found: Found, mine: list[Run], theirs: list[Run]) -> list[float] | None:
    """Return the values of paired(), one per seed."""
    if not all(map(found.has, [*mine, *theirs])):
        return None
    values = []
    for one, other in zip(mine, theirs, strict=True):
        for key in ("seed", "start_is", "order_is", "held_out_is"):
            left, right = found.of(one)[key], found.of(other)[key]
            if left != right:
                raise ValueError(
                    f"differences: {key} is {left} of {one.name} and {right} of {other.name}, "
                    "which must agree; remove the rows of one start or text"
                )
        values.append(found.loss(one) - found.loss(other))
    return values


def difference(values: list[float]) -> Difference:
    """Mean and standard error of the values; a run that diverged is infinitely worse."""
    if not all(map(math.isfinite, values)):
        return Difference(next(v for v in values if not math.isfinite(v)), None, len(values))
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Difference(statistics.fmean(values), error, len(values))


def worth_in_steps(
    found: Found, mine: list[Run], theirs: list[Run], longer: list[Run]
) -> Difference | None:
    """Further steps that `theirs` needs to be as low as `mine`, by the slope to `longer`.

    The result is a ratio of two paired means, the gain of `mine` over the gain of `longer`. The
    delta method gives its error, with the covariance of the two. None while a run is missing.
    Raises as paired() does.
    """
    gains, more = (paired_values(found, theirs, runs) for runs in (mine, longer))
    if gains is None or more is None:
        return None
    steps_a_gain = (longer[0].steps - theirs[0].steps) / statistics.fmean(more)
    worth = statistics.fmean(gains) * steps_a_gain
    rest = [gain * steps_a_gain - worth * other / statistics.fmean(more)
            for gain, other in zip(gains, more, strict=True)]  # fmt: skip
    return Difference(worth, difference(rest).error, len(gains))


def share(found: Found, mine: list[Run], native: list[Run]) -> float | None:
    """Mean over seeds of a gain divided by that of `native`; None while a run is missing."""
    if not all(map(found.has, [*mine, *native])):
        return None
    return statistics.fmean(shares(found, mine, native))
