"""SIGKILL at random moments, resume, and the same bits come out."""

from __future__ import annotations

import random
import signal

import pytest

from experiments.kill_resume.kills import kill_often, loss_lines, weights_hash


@pytest.mark.parametrize(
    ("model", "steps", "extra"),
    [
        pytest.param("tiny_model", 120, {}, id="native"),
        pytest.param("tiny_model", 40, {"model": {"autocast": "fp16"}}, id="native-fp16"),
        pytest.param("small_model", 40, {"engine": {"kind": "subspace"}}, id="subspace"),
    ],
)
def test_killed_and_resumed_run_ends_in_the_same_bits(
    sluiceway, request, write_config, tmp_path, model, steps, extra
):
    train = {"steps": steps, "save_every": 7, "eval_every": 20, "accumulate": 2}
    config = write_config(request.getfixturevalue(model), train=train, **extra)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    outcome = sluiceway("train", config, "--out", whole)
    assert outcome.code == 0, outcome.err
    record = kill_often(sluiceway.start, config, killed, 6, 0.5, random.Random(5))
    assert record
    assert all(kill["code"] == -signal.SIGKILL for kill in record)
    assert weights_hash(killed) == weights_hash(whole)
    assert loss_lines(killed) == loss_lines(whole)
