"""Comparisons by experiments/same_bits/run.py find differences and only those."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY
from safetensors.torch import save_file

FOLDER = REPOSITORY / "experiments" / "same_bits"


def left(folder: Path, weights: dict, state: dict, lines: list[dict]):
    """A run that ended with these."""
    from experiments.same_bits.compare import of_small_run

    folder.mkdir()
    save_file(weights, folder / "weights.safetensors")
    torch.save(state, folder / "optimizer.pt")
    (folder / "losses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return of_small_run(folder)


WEIGHTS = {"w": torch.tensor([[1.0, float("nan")], [0.0, -2.0]])}
STATE = {"state": {0: {"step": 3, "exp_avg": torch.ones(2, dtype=torch.bfloat16)}}}
LINES = [{"step": 0, "loss": [2.5], "seconds": 1.0}, {"step": 1, "loss": [2.25], "seconds": 1.0}]
ANOTHER_STATE = {"state": {0: {"step": 3, "exp_avg": torch.zeros(2, dtype=torch.bfloat16)}}}


@pytest.mark.parametrize(
    ("weights", "state", "lines", "first"),
    [
        (WEIGHTS, STATE, [{**line, "seconds": 9.0} for line in LINES], ""),
        ({"w": torch.tensor([[1.0, float("nan")], [-0.0, -2.0]])}, STATE, LINES,
         "weight w: 1 of 4 elements, by up to 0"),
        ({"w": WEIGHTS["w"].double()}, STATE, LINES, "weight w: torch.float32 (2, 2), now"),
        ({"v": WEIGHTS["w"]}, STATE, LINES, "weight v: not on both sides"),
        (WEIGHTS, ANOTHER_STATE, LINES, "state /state/0/exp_avg: 2 of 2 elements, by up to 1"),
        (WEIGHTS, {"state": {0: {**STATE["state"][0], "step": 4}}}, LINES,
         "state /state/0/step: 3, now 4"),
        (WEIGHTS, STATE, [LINES[0], {**LINES[1], "loss": [2.2500002]}],
         "step 1, loss: [2.25], now [2.2500002]"),
        (WEIGHTS, STATE, LINES[:1], "2 lines of losses, now 1"),
    ],
)  # fmt: skip
def test_one_bit_in_weights_state_or_losses_is_found(tmp_path, weights, state, lines, first):
    from experiments.same_bits.compare import compare

    old = left(tmp_path / "old", WEIGHTS, STATE, LINES)
    verdict = compare("run", old, left(tmp_path / "new", weights, state, lines))
    assert verdict.same == (first == "")
    assert verdict.first_difference.startswith(first)


@pytest.mark.parametrize(
    ("first_step", "name", "expected"),
    [
        (3, "promised, skipped step", "expected"),
        (None, "promised, skipped step", "expected"),
        (2, "promised, skipped step", "DIFFERS"),
        (3, "identity, tied", "DIFFERS"),
    ],
)
def test_run_that_changes_on_purpose_may_do_so_from_its_step_on_alone(
    first_step, name, expected, monkeypatch
):
    from experiments.same_bits import run
    from experiments.same_bits.compare import Verdict

    monkeypatch.setattr(run, "EXPECTED", {"promised, skipped step": (3, "a reason")})
    verdict = Verdict(name, False, "weight w: 1 of 4 elements", first_step, "", ("", ""))
    assert run.word(verdict) == expected


def test_state_that_is_named_otherwise_is_counted_and_a_failed_run_is_not_the_same(tmp_path):
    from experiments.same_bits.compare import compare, of_small_run

    old = left(tmp_path / "old", WEIGHTS, STATE, LINES)
    renamed = {"state": {0: {"step": 3, "first_moment": torch.ones(2)}}}
    verdict = compare("run", old, left(tmp_path / "new", WEIGHTS, renamed, LINES))
    assert verdict.same
    assert verdict.state == "1 values; not compared: 1 only in old, 1 only in new"
    nothing = compare("run", old, of_small_run(tmp_path / "nowhere"))
    assert not nothing.same
    assert nothing.first_difference == "new failed: it ended without a result"


@pytest.fixture
def torch_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("torch_as_before")
def test_small_runs_repeat_themselves_and_each_differs_from_another(tmp_path, monkeypatch):
    from experiments.same_bits import small_runs
    from experiments.same_bits.compare import compare, of_small_run

    names = ["svd, edf, scheduler", "promised, skipped step"]
    first, second = (
        [str(FOLDER / "small_runs.py"), str(tmp_path / turn), "--only", *names]
        for turn in ("first", "second")
    )
    subprocess.run([sys.executable, *first], check=True)
    monkeypatch.setattr(sys, "argv", second)  # In this process, which has done more before.
    small_runs.main()
    first, second = ({n: of_small_run(tmp_path / turn / n) for n in names}
                     for turn in ("first", "second"))  # fmt: skip
    for name in names:
        assert compare(name, first[name], second[name]).first_difference == ""
    assert not compare("two runs", first[names[0]], first[names[1]]).same
    skipped = [json.loads(line)["skipped"] for line in first[names[1]].losses.open()]
    assert skipped == [step == 3 for step in range(8)]


def test_small_runs_have_every_codec_order_norm_mode_wire_and_way_to_round():
    from experiments.same_bits.small_runs import RUNS

    def values(name):
        return {run.options.get(name) for run in RUNS.values()} - {None}

    assert values("codec") == {"svd", "block_random", "block_pca", "sparse_learned",
                               "sparse_random", "identity", "none"}  # fmt: skip
    assert values("schedule") == {"edf", "fcfs", "paper", "barrier"}
    assert values("norm_mode") == {"exact", "speculative"}
    assert values("wire") == {"fp32", "int8"}  # The third, bf16, is the default.
    assert values("weight_update") == {"stochastic", "residual"}
    assert any(run.scaler and run.bad_step and run.autocast for run in RUNS.values())


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.95, 9, 1.8331), (0.95, 4, 2.1318), (0.975, 1, 12.706)],
)
def test_quantiles_of_student_are_those_of_the_tables(probability, freedom, quantile):
    from experiments.same_bits.paced_turns import t_quantile

    assert t_quantile(probability, freedom) == pytest.approx(quantile, abs=1e-3)


def test_interval_of_paired_turns_is_symmetric_in_the_logarithm():
    from experiments.same_bits.paced_turns import interval

    low, mean, high = interval([1.1, 1 / 1.1] * 5)
    assert mean == pytest.approx(1.0)
    assert low * high == pytest.approx(1.0)
    # Ten turns: 1.8331 * ln(1.1) * sqrt(10 / 9) / sqrt(10).
    assert high == pytest.approx(1.1 ** (1.8331 / 3), rel=1e-4)
    assert interval([1.05, 1.06] * 5)[0] > 1
