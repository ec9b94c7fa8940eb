"""Figures of a run in trackers: TensorBoard's files, and trackers that are missing or fail."""

from __future__ import annotations

import pytest
from accelerate import tracking
from conftest import assert_short_error, read_lines
from sluiceway.config.file import load_config
from sluiceway.run.trackers import Trackers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

MISSING = [name for name in ("dvclive", "aim") if name not in tracking.get_available_trackers()]


def test_tensorboard_gets_the_figures_of_every_step(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model, train={"report_to": "tensorboard", "eval_every": 3})
    run = tmp_path / "run"
    assert (done := sluiceway("train", config, "--out", run)).code == 0, done.err
    more = sluiceway("resume", run, "--set", "train.steps=8")
    assert more.code == 0, more.err
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    lines = read_lines(run)
    for name, key in (
        ("train/loss", "loss"),
        ("train/learning_rate", "lr"),
        ("eval/loss", "eval_loss"),
    ):
        found = {event.step: event.value for event in events.Scalars(name)}
        said = {line["step"]: line[key] for line in lines if line.get(key) is not None}
        assert found == pytest.approx(said, rel=1e-6), name


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_made(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, train={"report_to": [MISSING[0]]})
    refused = sluiceway("train", config, "--out", tmp_path / "run")
    assert_short_error(refused, 2, f"train.report_to: {MISSING[0]} is not installed")
    assert not (tmp_path / "run").exists()


class Failing(tracking.GeneralTracker):
    """A tracker whose service is gone after the first line."""

    name, requires_logging_directory, main_process_only = "tensorboard", False, False
    tracker = None

    def __init__(self, title):
        super().__init__()
        self.calls = []

    def start(self):
        self.calls.append("start")

    def store_init_configuration(self, values):
        assert values["train.report_to"] == "['tensorboard']"

    def log(self, values, step=None, **_):
        self.calls.append(step)
        if step == 1:
            raise ConnectionError("no route")

    def finish(self):
        self.calls.append("finish")


def test_a_tracker_that_fails_is_named_once(tiny_model, write_config, tmp_path, monkeypatch, capfd):
    made = []
    monkeypatch.setitem(
        tracking.LOGGER_TYPE_TO_CLASS, "tensorboard", lambda t: made.append(Failing(t)) or made[-1]
    )
    made_by = tracking.LOGGER_TYPE_TO_CLASS["tensorboard"]
    made_by.requires_logging_directory = False
    config = load_config(write_config(tiny_model, train={"report_to": ["tensorboard"]}))
    line = {"loss": 1.0, "tokens": 8, "seconds": 0.5}
    with Trackers(tmp_path, config) as trackers:
        for step in range(4):
            trackers({"step": step, **line})
    assert made[0].calls == ["start", 0, 1]
    said = capfd.readouterr().err
    assert said == "sluiceway: tensorboard gets no more figures of this run: no route\n"
