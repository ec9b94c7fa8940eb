"""A run whose states are on disk goes on from its last commit, whatever ended it, bit for bit.

`make soak` kills it more often: SLUICEWAY_KILLS.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from conftest import assert_short_error, read_lines, wait_for_step
from safetensors.torch import load_file
from sluiceway.config.file import load_config
from sluiceway.engines import engine_of
from sluiceway.run.session import read_inputs
from sluiceway.run.timeline import Timeline
from sluiceway.text.batches import Batches

from experiments.kill_resume.kills import kill_at_step, kill_often, loss_lines, weights_hash

KILLS = int(os.environ.get("SLUICEWAY_KILLS", "4"))
KILLS_OF_CODEC = int(os.environ.get("SLUICEWAY_KILLS", "0"))  # Beside the one at a known step.
KILLS_OF_STREAMED = KILLS // 2
STEPS = max(40, 12 * KILLS)


@pytest.fixture(scope="module")
def configs(tiny_model, prose, tmp_path_factory):
    """Paths of a config that never saves, and of one that does; both train the same."""
    here = tmp_path_factory.mktemp("configs")
    # Attention drops out, so that every step draws from torch's generator.
    shutil.copytree(tiny_model, here / "model")
    shape = json.loads((here / "model" / "config.json").read_text())
    (here / "model" / "config.json").write_text(json.dumps({**shape, "attention_dropout": 0.2}))
    train = {"steps": STEPS, "micro_batch": 2, "accumulate": 2, "lr": 1e-2, "eval_sequences": 4}
    config = {
        "model": {"path": str(here / "model"), "autocast": "fp16"},
        "data": {"train": [str(prose)], "eval": [str(prose)], "sequence_length": 32},
        "engine": {"kind": "offload", "tier": "disk", "gradients": "bf16"},
        "store": {"chunk": "64KiB"},
        "device": {"name": "host", "threads": 1},
    }
    paths = [here / "unsaved.yaml", here / "saved.yaml"]
    for path, every in zip(paths, (0, 7), strict=True):
        path.write_text(
            yaml.safe_dump({**config, "train": {**train, "eval_every": 15, "save_every": every}})
        )
    return paths


@pytest.fixture(scope="module")
def whole(sluiceway, configs):
    """A run that nobody stops."""
    folder = configs[0].with_name("whole")
    done = sluiceway("train", configs[0], "--out", folder)
    assert done.code == 0, done.err
    return folder


def bits(folder):
    """Weights and losses, which are equal for equal runs."""
    return weights_hash(folder), loss_lines(folder)


def test_runs_that_are_killed_end_in_the_bits_of_one_that_is_not(
    sluiceway, configs, whole, tmp_path
):
    killed = tmp_path / "killed"
    record = kill_often(
        sluiceway.start, configs[1], killed, KILLS, 0.3, random.Random(3), ("config.yaml",)
    )
    assert len(record) >= min(KILLS, 3)
    assert all(kill["code"] == -signal.SIGKILL for kill in record)
    assert bits(killed) == bits(whole)


def test_a_run_that_was_never_saved_goes_on_from_the_step_before_the_kill(
    sluiceway, configs, whole, tmp_path
):
    killed = tmp_path / "killed"
    reached = kill_at_step(sluiceway, configs[0], killed, 20)
    assert not (killed / "checkpoint").exists()
    again = sluiceway("train", configs[0], "--out", killed)
    assert_short_error(again, 2, "is not empty", f"go on with: sluiceway resume {killed}")
    done = sluiceway("resume", killed, "--set", "train.betas=[0.8,0.9]")
    assert_short_error(done, 2, "train.betas was [0.9, 0.999]")
    done = sluiceway("resume", killed)
    assert done.code == 0, done.err
    went_on = int(done.err.partition("goes on from step ")[2].partition(",")[0])
    assert reached - 2 <= went_on <= reached
    assert "there is no save" in done.err
    assert bits(killed) == bits(whole)


CODEC = {"codec": "block_random", "target": "proj", "block": 8, "redraw": 5}


def test_a_speculative_run_with_a_codec_that_is_killed_draws_its_projectors_again(
    sluiceway, configs, tmp_path
):
    config = tmp_path / "codec.yaml"
    given = yaml.safe_load(configs[1].read_text())
    given["engine"] |= CODEC
    given["store"]["chunk"] = "8KiB"  # Which matrices of this model fill.
    given["device"]["disk_gbps"] = 1e-6  # Slower than any codec.
    given["device"]["pin"] = len(os.sched_getaffinity(0)) > 1
    given["train"] |= {"steps": max(20, 12 * KILLS_OF_CODEC), "eval_every": 0}
    config.write_text(yaml.safe_dump(given))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = sluiceway("train", config, "--out", whole)
    assert done.code == 0, done.err
    assert "engine.codec" not in done.err
    given["engine"]["policy"] = "speculative"  # Of the same bits, with other moments to be killed.
    config.write_text(yaml.safe_dump(given))
    kill_at_step(sluiceway, config, killed, 8)
    done = sluiceway("resume", killed, "--set", "engine.ratio=0.25")
    assert_short_error(done, 2, "engine.ratio was 0.5, is now 0.25")
    kill_often(
        sluiceway.start, config, killed, KILLS_OF_CODEC, 0.3, random.Random(5), ("config.yaml",)
    )
    assert bits(killed) == bits(whole)
    assert json.loads((killed / "summary.json").read_text())["codecs"]


@pytest.mark.parametrize("policy", ["spill", "speculative"])
def test_runs_with_streamed_weights_that_are_killed_end_in_the_bits_of_resident_ones(
    sluiceway, configs, whole, tmp_path, policy
):
    config, killed = tmp_path / "streamed.yaml", tmp_path / "killed"
    given = yaml.safe_load(configs[1].read_text())
    given["engine"] |= {"weights": "streamed", "policy": policy}
    given["store"]["chunk"] = "8KiB"  # Which matrices of this model fill.
    config.write_text(yaml.safe_dump(given))
    kill_at_step(sluiceway, config, killed, 8)
    kill_often(
        sluiceway.start, config, killed, KILLS_OF_STREAMED, 0.3, random.Random(7), ("config.yaml",)
    )
    assert loss_lines(killed) == loss_lines(whole)
    weights, expected = (
        load_file(run / "checkpoint" / "model.safetensors") for run in (killed, whole)
    )
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=["term", "int-twice"]
)
def test_what_is_asked_to_end_has_committed_its_steps(sluiceway, configs, whole, tmp_path, signals):
    stopped = tmp_path / "stopped"
    command = sluiceway.start("train", configs[0], "--out", stopped)
    wait_for_step(stopped, 10)
    for number in signals:
        command.signal(number)
    assert command.wait().code == 130
    reached = read_lines(stopped)[-1]["step"]
    inspected = sluiceway("store", "inspect", stopped / "store", "--json")
    assert inspected.code == 0, inspected.err
    done = sluiceway("resume", stopped)
    assert done.code == 0, done.err
    if len(signals) == 1:  # The step in flight was finished, committed and saved.
        assert done.err == ""
    assert json.loads(inspected.out)["live"]["step"] >= reached - 3  # Skipped ones are not counted.
    assert bits(stopped) == bits(whole)


def test_a_run_that_made_no_step_leaves_no_store(sluiceway, configs, tmp_path):
    out = tmp_path / "out"
    slow = "device.link={d2h_gbps: 0.000005, h2d_gbps: 1}"  # The first step outlasts any delay.
    command = sluiceway.start(
        "train", configs[0], "--out", out, "--set", slow, "--set", "data.eval=[]"
    )
    while not (out / "store" / "drive0.sws").exists() and command.is_running():
        time.sleep(0.01)
    time.sleep(0.3)
    command.signal(signal.SIGINT)
    time.sleep(0.1)
    command.signal(signal.SIGINT)
    assert command.wait().code == 130
    assert not out.exists()


def test_a_run_without_a_commit_of_its_own_is_begun_where_it_is(
    sluiceway, configs, whole, tmp_path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(whole / "config.yaml", empty)
    (empty / "metrics.jsonl").touch()
    done = sluiceway("resume", empty)
    assert done.code == 0, done.err
    assert bits(empty) == bits(whole)


@pytest.mark.parametrize("noted", [True, False])
def test_a_step_that_ends_before_its_run_is_noted_is_not_committed(configs, tmp_path, noted):
    settings = [f"store.path={tmp_path / 'store'}", "model.autocast=null"]
    config = load_config(configs[0], settings)
    inputs = read_inputs(config, Path(config.model.path))
    batches = Batches(inputs.train, config.train.micro_batch, 0)

    def opened():
        engine = engine_of(config)
        engine.open(Path(config.model.path), inputs.placement, None)
        return engine

    with contextlib.closing(opened()) as engine:
        for step in (1, 2, 3):
            engine.update([batches[step]], Timeline(None))
            if step < 3 or noted:
                engine.note_run(b"step %d" % step)
        engine.close()
    with contextlib.closing(opened()) as engine:
        assert engine.committed_run(None) == (b"step 3" if noted else b"step 2")
        engine.take_commit()
        assert engine.optimizer.engine.committed_steps == (3 if noted else 2)
