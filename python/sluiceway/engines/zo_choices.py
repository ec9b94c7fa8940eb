"""Chooses the numbers that are `auto` for streamed weights: directions, and steps of a base.

Directions per step:

    T* = b F / (4 B)        tokens per step from which on one direction takes as long as the bus
    q  = ceil(T* / T)       directions with which T tokens per step take as long as the bus

b is the number of bytes that cross per parameter and step, B the bytes per second of the bus, and
F the operations per second of the device. A direction takes two forwards with 2 operations per
parameter and token. With fewer than q directions the device waits, so one more costs next to
nothing, unless earlier steps are replayed: with k pending steps, each direction draws the noise of
all directions of those steps again, q^2 k. The progress of a step is about proportional to its
directions, so the number stays small enough that the directions per second are near their maximum.

Steps of a base: every later step draws the noise of all pending steps again. A new base ends that,
but must be written.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

TOKEN_FLOP = 4  # Operations of one direction per parameter and token.
_AS_MANY = 0.99  # Share of the largest number of directions per second that must be reached.
_HARDLY_MORE = 1.01  # Factor over the cheapest step that is accepted.


@dataclass(frozen=True)
class PlannedDirections:
    """Number of directions that the planner chose, and the bound that limited it."""

    chosen: int
    hiding_tokens: float  # T*.
    tokens: int  # T.
    bound: str  # "tokens", "memory", "log" or "time".
    why: str

    def figures(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def choose_directions(
    hiding: float,
    tokens: int,
    most: int,
    seconds: Callable[[int], float],
    device_bytes: Callable[[int], int],
    room: int | None,
) -> PlannedDirections:
    """Choose enough directions to hide the bus, within memory, log and replay time; at least one.

    Parameters
    ----------
    hiding : float
        T*; 0 if nothing crosses.
    tokens : int
        T: tokens of all micro-batches of a step, for which the weights cross once.
    most : int
        Largest number of directions in a step of the log.
    seconds, device_bytes : callable
        Return the time of a step with the given number of directions, and its device memory.
    room : int or None
        Bytes that a step may hold on the device; None if unknown.
    """
    wanted = max(1, math.ceil(hiding / tokens))
    logged = min(wanted, most)
    fitting = logged
    if room is not None:
        fitting = max(1, bisect_right(range(1, logged + 1), room, key=device_bytes))
    bound = "tokens" if fitting == wanted else "log" if fitting == logged else "memory"
    rates = [count / seconds(count) for count in range(1, fitting + 1)]
    chosen = max(i for i, rate in enumerate(rates, start=1) if rate >= _AS_MANY * max(rates))
    if chosen < fitting:
        bound = "time"
    because = {
        "tokens": "",
        "memory": f"; {wanted:,} do not fit into the device's memory",
        "log": f"; {wanted:,} are more than the {most:,} per step that the log can hold",
        "time": f"; with {fitting:,}, replays would reduce the directions per second",
    }
    why = (
        f"{chosen:,}, since one direction hides the transfers with {hiding:,.0f} tokens per step, "
        f"and a step has {tokens:,}{because[bound]}"
    )
    return PlannedDirections(chosen, hiding, tokens, bound, why)


@dataclass(frozen=True)
class PlannedBases:
    """Steps between new bases that the planner chose, with the reason."""

    chosen: int
    why: str

    def figures(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class ConsolidationCosts:
    """Seconds of the parts of a step and of a new base, on one machine."""

    bringing: float  # Streams all weights for one step.
    working: float  # Computes losses and perturbed copies, without pending steps.
    replaying: float  # Replays one pending step, in addition to `working`.
    rewriting: float = 0.0  # New base: reads the old one and writes the new one.
    replaying_base: float = 0.0  # New base: replays one pending step, while it is rewritten.

    def of_base(self, every: int) -> float:
        """Seconds for a new base that takes up `every` steps."""
        return max(self.rewriting, every * self.replaying_base)

    def without_base(self, steps: int) -> float:
        """Mean seconds of the first `steps` steps, if no new base is made."""
        if not self.replaying:
            return self._step(0)
        return sum(self._step(pending) for pending in range(steps)) / steps

    def _step(self, pending: int) -> float:
        return max(self.bringing, self.working + pending * self.replaying)

    def means(self, most: int) -> list[float]:
        """Mean seconds of a step with its share of the new base, for one every 1, 2 .. `most`."""
        steps = map(self._step, range(most))
        return [
            (all_steps + self.of_base(every)) / every
            for every, all_steps in enumerate(accumulate(steps), start=1)
        ]

    def cheapest(self, most: int) -> int:
        """Steps between new bases for which a step takes the least time."""
        means = self.means(most)
        return 1 + means.index(min(means))

    def choose(self, most: int, steps: int) -> PlannedBases:
        """Choose the steps between new bases for a run of `steps` steps.

        The result is the largest number for which a step takes hardly longer than the cheapest
        one. With fewer bases less is written and, if a base has 16 bits, weights are rounded less
        often. A run of at most `most` steps may need no new base; then `steps` is returned.
        """
        means = self.means(min(most, steps))
        if steps <= most:
            means[-1] = self.without_base(steps)
        least = min(means)
        chosen = max(n for n, mean in enumerate(means, start=1) if mean <= _HARDLY_MORE * least)
        if chosen == steps:
            return PlannedBases(chosen, f"none in {steps:,} steps, since none would save time")
        return PlannedBases(
            chosen,
            f"one every {chosen:,} steps, the largest number with which a step takes at most 1 % "
            f"longer than with one every {1 + means.index(least):,}",
        )
