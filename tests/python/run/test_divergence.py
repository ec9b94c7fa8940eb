"""A run that diverges is detected and reported."""

from __future__ import annotations

import json

import pytest
from conftest import assert_short_error, read_lines
from sluiceway.run.step_figures import Diverged, check_converged, step_figures


def line(step, loss=1.0, skipped=0, scale=None, **more):
    return {"step": step, "loss": loss, "skipped": skipped, "loss_scale": scale, **more}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"step": 0, "eval_loss": 1.0}],
        [line(1), line(2)],
        [line(1), line(2, None, 1), line(3)],
        [line(1), line(2, 1.0, 1, 65536.0)],  # One step alone: the scale looks for its size.
        [line(1), line(2, eval_loss=2.0)],
        [line(1, eval_loss=None), line(2, eval_loss=2.0)],
    ],
)
def test_run_that_ended_with_finite_numbers_has_not_diverged(lines):
    check_converged(lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line(1), line(2, None, 1)], "step 2: .*its loss is not finite, the last 1 of the run"),
        ([line(1), line(2, None, 1), line(3, None, 1)], "step 3: .*the last 2 .*those of step 1;"),
        ([line(1, None, 1), line(2, None, 1)], "step 2: .*the last 2 .*no step changed a weight"),
        ([line(1), line(2, 1.0, 1)], "step 2: .*its gradient is not finite"),
        ([line(1, 1.0, 1, 4.0), line(2, 1.0, 1, 2.0)], "step 2: .*its gradient is not finite"),
        ([line(1), line(2, None)], "step 2: .*its loss is not finite; expected"),
        ([line(1), line(2, eval_loss=None)], "step 2: .*the held-out loss after it is not finite"),
    ],
)
def test_last_step_without_finite_numbers_is_named(lines, words):
    with pytest.raises(Diverged, match=words):
        check_converged(lines)


def test_final_loss_is_that_of_the_last_step_or_none():
    more = {"seconds": 1.0, "tokens": 1, "bytes": {}, "peak_bytes": {}}
    lines = [line(1, 5.0, **more), line(2, None, 1, **more)]
    assert step_figures(lines)["final_loss"] is None
    assert step_figures(lines[:1])["final_loss"] == 5.0


EXPLODING = {"steps": 5, "lr": 1e38, "schedule": "constant", "max_norm": None}


def test_run_whose_last_steps_are_skipped_is_diverged_and_so_it_is_when_resumed(
    sluiceway, tiny_model, write_config, tmp_path
):
    run = tmp_path / "out"
    outcome = sluiceway("train", write_config(tiny_model, train=EXPLODING), "--out", run)
    assert_short_error(outcome, 1, "step 5: the run ended here and has diverged, its loss is not")
    steps = read_lines(run)[1:]
    assert [step["skipped"] for step in steps] == [0, 1, 1, 1, 1]
    assert "the last 4 of the run were skipped: the weights are those of step 1" in outcome.err
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["skipped_steps"], summary["steps"]) == ("diverged", 4, 5)
    assert summary["final_loss"] is None
    assert_short_error(sluiceway("resume", run), 1, "step 5: the run ended here and has diverged")
    assert json.loads((run / "summary.json").read_text())["status"] == "diverged"
    outcome = sluiceway("report", run)
    assert outcome.code == 0, outcome.err
    assert "diverged, after step 5 of 5" in (run / "report.html").read_text()


def test_update_that_spoils_the_weights_shows_in_the_held_out_loss_after_it(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, train={**EXPLODING, "steps": 1})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, 1, "step 1: ", "the held-out loss after it is not finite")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["final_eval_loss"]) == ("diverged", None)
    assert summary["final_loss"] == pytest.approx(5.5, abs=0.5)


def test_comparison_that_diverged_is_named(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model, train=EXPLODING, compare="native")
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, 1, f"{tmp_path}/out/native: step 5: the run ended here and has")
