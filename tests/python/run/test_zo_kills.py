"""A run of `kind: zo` ends in the same bits, wherever it is killed and resumed.

`make soak` kills it more often: SLUICEWAY_KILLS.
"""

from __future__ import annotations

import os
import random
import shutil
import signal

import pytest
import yaml

from experiments.kill_resume.kills import kill_often, loss_lines, weights_hash

KILLS = int(os.environ.get("SLUICEWAY_KILLS", "3"))
MOST_OF_A_RUN = 8  # A base takes 1,024 updates, so that kills are dealt to several short runs.

SAVES = ("checkpoint", "checkpoint.old")


@pytest.fixture(
    params=[
        ({"tier": "host", "directions": 2}, SAVES),
        ({"tier": "host", "mode": "write_back", "save_every": 3}, SAVES),
        ({"tier": "disk", "directions": 2, "consolidate": 3}, ("config.yaml",)),
        ({"tier": "disk", "noise": "lowrank", "period": 3}, ("config.yaml",)),
    ],
    ids=["host", "write_back", "disk", "low-rank-on-disk"],
)
def logged(request, tiny_model, prose, tmp_path):
    """Path of a config, and what a folder has that can be resumed."""
    engine, resumable = request.param
    save_every = engine.get("save_every", 7)
    engine = {key: value for key, value in engine.items() if key != "save_every"}
    config = tmp_path / "run.yaml"
    train = {"steps": 40, "micro_batch": 2, "lr": 1e-3, "weight_decay": 0.1,
             "eval_every": 15, "eval_sequences": 6, "save_every": save_every}  # fmt: skip
    config.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(tiny_model), "dtype": "bf16"},
                "data": {"train": [str(prose)], "eval": [str(prose)], "sequence_length": 16},
                "train": train,
                "engine": {"kind": "zo", "eps": 1e-2, **engine},
                "device": {"name": "host", "threads": 1},
            }
        )
    )
    return config, resumable


@pytest.mark.timeout(300 + 10 * KILLS)
def test_runs_that_are_killed_end_in_the_bits_of_one_that_is_not(sluiceway, logged, tmp_path):
    config, resumable = logged
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = sluiceway("train", config, "--out", whole)
    assert done.code == 0, done.err
    expected = weights_hash(whole), loss_lines(whole)
    generator, made = random.Random(3), 0
    while made < KILLS:
        wanted = min(MOST_OF_A_RUN, KILLS - made)
        record = kill_often(sluiceway.start, config, killed, wanted, 0.15, generator, resumable)
        assert record
        assert all(kill["code"] == -signal.SIGKILL for kill in record)
        assert (weights_hash(killed), loss_lines(killed)) == expected
        shutil.rmtree(killed)
        made += len(record)
