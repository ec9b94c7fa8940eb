"""experiments/regimes/time_to_quality.py does its sums."""

from __future__ import annotations

import pytest

from experiments.regimes.time_to_quality import document, pairs_of, seconds_until, times


def test_time_to_quality_is_over_native_of_the_same_seed():
    def row(way: str, seed: int, *curve: tuple[float, float]) -> dict:
        return {"way": way, "accumulate": 1, "seed": seed, "link_gbps": 0.5,
                "curve": [(0.0, 2.0), *curve]}  # fmt: skip

    rows = [row("native", 0, (10.0, 1.0)), row("native", 1, (8.0, 1.5)),
            row("Sluiceway", 0, (19.0, 1.05), (20.0, 0.5)), row("Sluiceway", 1, (8.0, 1.75)),
            row("full gradients, barriers", 2, (8.0, 1.0))]  # fmt: skip
    # 95 % of native's gain are reached after 9.5 of its 10 seconds, all of it on ours' next line.
    pairs = pairs_of(rows, "Sluiceway", 1)
    never = float("inf")
    assert times(pairs, 0.95) == [
        (pytest.approx(19.0), pytest.approx(9.5)),
        (never, pytest.approx(7.6)),
    ]
    assert times(pairs, 1.0) == [(pytest.approx(19 + 0.05 / 0.55), 10.0), (never, 8.0)]
    assert "| 1 | Sluiceway | 2 | 1 of 2 | 1 of 2 | 1 of 2 | -125.0 |" in document(rows)
    assert "| 1 | native | 2 | 9.00 | 1.00 | 1.00 | +0.0 |" in document(rows)
    assert "| 1 | Sluiceway | 1 | 19.09 | 1.91 | 2.00 | -500.0 |" in document(rows[::2])
    assert "barriers" not in document(rows)
    rows[2]["link_gbps"] = 1.0
    with pytest.raises(ValueError, match=r"seed 0: link of 1 GB/s and native's of 0\.5"):
        pairs_of(rows, "Sluiceway", 1)


def test_seconds_until_a_loss_lie_between_two_looks():
    curve = [(0.0, 2.0), (10.0, 1.5), (20.0, 1.6), (30.0, 1.25)]
    assert seconds_until(curve, 1.75) == 5.0
    assert seconds_until(curve, 1.5) == 10.0
    assert seconds_until(curve, 1.25) == 30.0
    assert seconds_until(curve, 2.5) == 0.0
    assert seconds_until(curve, 1.0) == float("inf")


def test_a_native_that_gains_nothing_is_refused():
    row = {"way": "native", "accumulate": 1, "seed": 0, "link_gbps": 0.5,
           "curve": [(0.0, 2.0), (1.0, 2.0)]}  # fmt: skip
    with pytest.raises(ValueError, match="native gained nothing with seed 0"):
        pairs_of([row], "native", 1)
