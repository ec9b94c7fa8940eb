"""A disk that is full while a run goes on: one line, the last save as it was, and resume goes on.

The limit on the size of a file stands in for the disk: what a write over it gets differs from a
full disk in the error's number alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import resource
from pathlib import Path

import pytest
from conftest import assert_short_error, read_lines
from sluiceway.errors import IoError
from sluiceway.run.run_folder import RunFolder
from sluiceway.run.timeline import Timeline

FULL = Path("/dev/full")


@pytest.fixture
def limited(sluiceway):
    """Let no command write a file of more than so many bytes."""

    @contextlib.contextmanager
    def limit(most):
        server = sluiceway.server_pid
        before = resource.prlimit(server, resource.RLIMIT_FSIZE)
        resource.prlimit(server, resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.prlimit(server, resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def begun(sluiceway, tiny_model, write_config, tmp_path):
    """A run of six steps of which four are made and saved, and one that was never stopped."""
    train = {"schedule": "constant", "save_every": 2}
    for name, steps in (("whole", 6), ("run", 4)):
        config = write_config(tiny_model, train={**train, "steps": steps})
        assert sluiceway("train", config, "--out", tmp_path / name).code == 0
    return tmp_path / "run", tmp_path / "whole"


def saved(folder):
    """Every file of the last save, with its bytes."""
    return {path.name: path.read_bytes() for path in (folder / "checkpoint").iterdir()}


def assert_goes_on_to_the_same_end(sluiceway, run, whole):
    outcome = sluiceway("resume", run, "--set", "train.steps=6")
    assert outcome.code == 0, outcome.err
    assert saved(run)["model.safetensors"] == saved(whole)["model.safetensors"]
    assert [line["step"] for line in read_lines(run)] == list(range(7))
    assert [line.get("loss") for line in read_lines(run)] == [
        line.get("loss") for line in read_lines(whole)
    ]


@pytest.mark.parametrize("most", [20_000, 150_000], ids=["weights", "moments"])
def test_save_that_does_not_fit_leaves_the_one_before_and_the_run_goes_on_from_it(
    sluiceway, begun, limited, most
):
    run, whole = begun
    before = saved(run)
    assert len(before["model.safetensors"]) < 150_000 < len(before["optimizer.pt"])
    with limited(most):  # Metrics and config fit.
        outcome = sluiceway("resume", run, "--set", "train.steps=6")
    assert outcome.err.splitlines()[0] == "sluiceway: train.steps was 4, is now 6"
    outcome.err = outcome.err.partition("\n")[2]
    words = "the save could not be written, ", "File too large", "the one before it is untouched"
    assert_short_error(outcome, 1, *words)
    assert saved(run) == before
    assert not (run / "checkpoint.new").exists()
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    assert_goes_on_to_the_same_end(sluiceway, run, whole)


@pytest.mark.parametrize("summary_fits", [True, False])
def test_line_of_metrics_that_does_not_fit_ends_the_run_and_is_cut_on_resume(
    sluiceway, begun, limited, summary_fits
):
    run, whole = begun
    before, metrics = saved(run), run / "metrics.jsonl"
    filled = metrics.read_bytes()
    config, summary = (len((run / name).read_bytes()) for name in ("config.yaml", "summary.json"))
    assert config < summary - 50 < len(filled)
    with limited(len(filled) + 100 if summary_fits else summary - 50):
        outcome = sluiceway("resume", run, "--set", "train.steps=6")
    outcome.err = outcome.err.partition("\n")[2]
    assert_short_error(outcome, 1, "metrics.jsonl: cannot be written, File too large")
    assert metrics.read_bytes()[: len(filled)] == filled
    assert saved(run) == before
    assert_goes_on_to_the_same_end(sluiceway, run, whole)


def test_trace_and_summary_that_do_not_fit_are_said_with_their_path(tmp_path):
    with pytest.raises(IoError, match="/dev/full: the trace cannot be written, No space") as full:
        Timeline(FULL).write()
    assert full.value.errno == errno.ENOSPC
    folder = RunFolder(tmp_path)
    folder.write_summary({"status": "done"})
    (tmp_path / ".summary.json.new").symlink_to(FULL)
    with pytest.raises(IoError, match=r"summary.json: cannot be written, No space left on device"):
        folder.write_summary({"status": "failed"})
    assert folder.read_summary() == {"status": "done"}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
