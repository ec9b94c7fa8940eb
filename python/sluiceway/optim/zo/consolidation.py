"""How many steps a base of streamed weights is kept, by what that costs.

Each pending step is drawn again in every later one; a new base ends that, and is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


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
