"""Chooses how many steps a base of streamed weights is kept, by the cost of a step.

Every later step draws the noise of all pending steps again. A new base ends that, but must be
written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

_HARDLY_MORE = 1.01  # Factor over the cheapest step that is accepted.


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
