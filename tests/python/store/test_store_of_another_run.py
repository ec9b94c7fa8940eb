"""A run's store is its own: another run at it, drives that are gone, a damaged commit."""

from __future__ import annotations

import shutil

import pytest
import torch  # noqa: F401  Before the compiled module.
from conftest import assert_short_error
from sluiceway import _core

from experiments.kill_resume.kills import kill_at_step, loss_lines, weights_hash

STEPS = 16


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def config(tiny_model, write_config, paths):
    return write_config(
        tiny_model,
        train={"steps": STEPS, "save_every": 0, "eval_every": 8, "schedule": "constant"},
        engine={"kind": "offload", "tier": "disk", "gradients": "bf16"},
        store={"chunk": "64KiB", "path": [str(path) for path in paths]},
    )


def test_a_new_run_on_a_store_with_steps_is_refused_before_any_work_and_leaves_nothing(
    sluiceway, config, tmp_path
):
    first, second = tmp_path / "first", tmp_path / "second"
    kill_at_step(sluiceway, config, first, 3)
    done = sluiceway("train", config, "--out", second, "--set", "train.lr=0.1")
    assert_short_error(
        done, 2, "store.path: ", "of another run; resume that run, or choose another"
    )
    assert "held-out" not in done.out
    assert not second.exists()
    done = sluiceway("resume", first)
    assert done.code == 0, done.err
    whole = tmp_path / "whole"
    done = sluiceway("train", config, "--out", whole, "--set", "store.path=null")
    assert done.code == 0, done.err
    assert (weights_hash(first), loss_lines(first)) == (weights_hash(whole), loss_lines(whole))


def test_what_another_run_committed_at_the_same_path_is_refused(sluiceway, config, paths, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    kill_at_step(sluiceway, config, first, 3)
    before = (first / "metrics.jsonl").read_bytes()
    for path in paths:
        shutil.move(path, path.with_name("kept_" + path.name))
    kill_at_step(sluiceway, config, second, 5)
    done = sluiceway("resume", first)
    assert_short_error(done, 2, "of another run; bring this run's drives", "--last-save")
    assert (first / "metrics.jsonl").read_bytes() == before
    done = sluiceway("resume", second)
    assert done.code == 0, done.err


@pytest.mark.parametrize("lost", ["files", "folders", "setting"])
def test_a_run_without_a_save_does_not_begin_again_where_its_store_is_gone(
    sluiceway, config, paths, tmp_path, lost
):
    run = tmp_path / "run"
    reached = kill_at_step(sluiceway, config, run, 4)
    before = (run / "metrics.jsonl").read_bytes()
    setting = ["--set", "store.path=null"] if lost == "setting" else []
    for path in paths if lost != "setting" else []:
        shutil.move(path, path.with_name("kept_" + path.name))
        if lost == "files":
            path.mkdir()
    done = sluiceway("resume", run, *setting)
    assert_short_error(
        done, 2, f"has made {reached} steps and was never saved", "restore the store"
    )
    assert (run / "metrics.jsonl").read_bytes() == before
    assert not (run / "store").exists()
    for path in paths if lost != "setting" else []:
        shutil.rmtree(path, ignore_errors=True)
        shutil.move(path.with_name("kept_" + path.name), path)
    done = sluiceway("resume", run)
    assert done.code == 0, done.err


def _flip_in_the_last_commit(paths):
    """A byte of a state that the step of the save has elsewhere."""
    drives = [paths[0] / "drive0.sws", paths[1] / "drive1.sws"]
    store = _core.open_store([str(drive) for drive in drives], writable=False)
    described = store.describe()
    assert described["pinned"]["step"] == 4 < described["live"]["step"]
    (states,) = (n for n, r in enumerate(described["regions"]) if r["kind"] == "state")
    bytes_of = {version: store.read(states, 0, version) for version in ("live", "pinned")}
    store.close()
    assert bytes_of["live"] != bytes_of["pinned"]
    for drive in drives:
        whole = drive.read_bytes()
        if (at := whole.find(bytes_of["live"][:4096])) >= 0:
            drive.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            return
    raise AssertionError("the chunk is on no drive")


def test_a_damaged_commit_names_the_save_which_last_save_goes_on_from(
    sluiceway, config, paths, tmp_path
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    saving = ["--set", "train.save_every=4"]
    done = sluiceway("train", config, "--out", whole, *saving, "--set", "store.path=null")
    assert done.code == 0, done.err
    kill_at_step(sluiceway, config, run, 6, *saving)
    _flip_in_the_last_commit(paths)
    done = sluiceway("resume", run)
    assert_short_error(done, 1, "has checksum", "the save of step 4 is whole", "--last-save")
    done = sluiceway("resume", run, "--last-save")
    assert done.code == 0, done.err
    assert "goes on from step" not in done.err
    assert (weights_hash(run), loss_lines(run)) == (weights_hash(whole), loss_lines(whole))
