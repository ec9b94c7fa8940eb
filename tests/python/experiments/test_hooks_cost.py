"""experiments/bench/hooks_cost.py measures every way and phase."""

from __future__ import annotations

from experiments.bench.hooks_cost import PHASES, WAYS, measured


def test_every_way_has_a_time_for_every_phase() -> None:
    found = measured(weights=3, steps=2, warmup=1)
    assert list(found) == list(WAYS)
    assert all(list(phases) == list(PHASES) for phases in found.values())
    assert all(phases["backward"] > 0 for phases in found.values())
    # A way with an optimizer takes longer in step() than the way that does nothing there.
    assert all(found[way]["step"] > found["no update"]["step"] for way in list(WAYS)[1:])
