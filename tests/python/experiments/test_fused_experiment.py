"""experiments/fused: bytes by the formula, and that losses and seconds speak of the same ways."""

from __future__ import annotations

from experiments.fidelity.stages import MODELS, Results, rolling
from experiments.fidelity.tables import Row
from experiments.fused.activations import memory_rows
from experiments.fused.losses import step_ratios, way_of
from experiments.step.step_ways import NATIVE, WAYS


def test_the_quickstart_keeps_less_by_the_formula():
    with_hooks, fused, a_q_for_each = (row["bytes"] for row in memory_rows())
    assert fused == memory_rows()[1]["formula"] < with_hooks
    assert a_q_for_each > fused


def test_every_fine_tune_has_a_way_whose_seconds_were_measured(tmp_path):
    jobs = rolling(Results(tmp_path / "results.jsonl"))
    ways = {way_of(Row(job, (0,))) for job in jobs}
    assert {job.model for job in jobs} == set(MODELS)
    assert len(ways) == 11  # Native, and k = 1, 2, 4, 8, none at two ratios.
    assert NATIVE in ways
    assert ways <= set(WAYS)
    for checkpointing in (False, True):
        assert set(step_ratios(checkpointing)) == ways
