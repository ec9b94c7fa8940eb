"""How many steps a base of streamed weights is kept, by what that costs.

Each pending step is drawn again in every later one; a new base ends that, and is written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

_HARDLY_MORE = 1.01  # Times the least.


@dataclass(frozen=True)
class PlannedBases:
    """What was chosen where a config leaves it to the plan."""

    chosen: int
    why: str

    def figures(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class ConsolidationCosts:
    """Seconds on one machine."""

    bringing: float  # All weights of a step.
    working: float  # Losses and perturbed copies of a step behind which nothing is pending,
    replaying: float  # and what each pending step adds to that.
    rewriting: float = 0.0  # A new base: the old one read, the new one written,
    replaying_base: float = 0.0  # beside what each pending step takes.

    def of_base(self, every: int) -> float:
        """A new base of so many steps."""
        return max(self.rewriting, every * self.replaying_base)

    def without_base(self, steps: int) -> float:
        """A step of the first `steps`, behind which all before are pending."""
        if not self.replaying:
            return self._step(0)
        return sum(self._step(pending) for pending in range(steps)) / steps

    def _step(self, pending: int) -> float:
        return max(self.bringing, self.working + pending * self.replaying)

    def means(self, most: int) -> list[float]:
        """A step, with its share of the new base, where that comes every 1, 2 .. `most` steps."""
        steps = map(self._step, range(most))
        return [
            (all_steps + self.of_base(every)) / every
            for every, all_steps in enumerate(accumulate(steps), start=1)
        ]

    def cheapest(self, most: int) -> int:
        """Steps between new bases for which a step takes least."""
        means = self.means(most)
        return 1 + means.index(min(means))

    def choose(self, most: int, steps: int) -> PlannedBases:
        """Steps between new bases of a run of so many steps.

        They are the most whose step takes hardly more than the cheapest one: fewer bases are less
        that is written, and, where a base is of 16 bits, fewer roundings. A run of no more steps
        than a base takes may do without a new one, and then as many as it has are chosen.
        """
        means = self.means(min(most, steps))
        if steps <= most:
            means[-1] = self.without_base(steps)
        least = min(means)
        chosen = max(n for n, mean in enumerate(means, start=1) if mean <= _HARDLY_MORE * least)
        if chosen == steps:
            return PlannedBases(chosen, f"none in {steps:,} steps, as none would save time")
        return PlannedBases(
            chosen,
            f"one every {chosen:,} steps, the most whose step takes at most 1 % more than it does "
            f"with one every {1 + means.index(least):,}",
        )
