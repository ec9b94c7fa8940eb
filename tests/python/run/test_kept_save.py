"""Two saves of a run: what a kill at any moment leaves, what the disk gave back, going back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import assert_short_error, read_lines
from sluiceway.base import atomic
from sluiceway.errors import Corrupt, InvalidArgument
from sluiceway.run import checkpoint, manifest
from sluiceway.run.last_save import last_save

CALLS = [(Path, "rename"), (Path, "mkdir"), (shutil, "rmtree"), (os, "fsync"), (os, "unlink")]


def write(text):
    def fill(folder):
        (folder / "weights").write_text(text)
        state = {"format": 2, "position": {"step": int(text)}, "files": manifest.sums_of(folder)}
        (folder / checkpoint.STATE_FILE).write_bytes(manifest.sealed(state))

    return fill


def step_of(folder):
    return checkpoint.load_state(folder)[0].step


def ended_at_call(number, action):
    """Run `action` in a process that is killed at system call `number`; tell if it was killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = 0

    def counted(call):
        def ends(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                os._exit(9)
            return call(*args, **kwargs)

        return ends

    for holder, name in CALLS:
        setattr(holder, name, counted(getattr(holder, name)))
    try:
        action()
    finally:
        os._exit(0)


@pytest.mark.parametrize("saves", [0, 1, 2])
def test_kill_at_any_call_of_a_save_leaves_the_last_or_the_new_one_whole(tmp_path, saves):
    moments = 0
    while True:
        target = tmp_path / str(moments) / "checkpoint"
        target.parent.mkdir()
        for step in range(saves):
            checkpoint.publish(target, write(str(step + 1)))
        new = lambda: checkpoint.publish(target, write(str(saves + 1)))  # noqa: B023, E731
        killed = ended_at_call(moments + 1, new)
        atomic.recover_folder(target)
        found = step_of(target) if target.exists() else 0
        assert found in (saves, saves + 1)
        if found == saves + 1 and saves:
            assert step_of(atomic.older_folder(target)) == saves
        if not killed:
            break
        moments += 1
        checkpoint.publish(target, write("9"))
        assert step_of(target) == 9
    assert found == saves + 1
    assert moments >= 8 + (saves > 0)


def test_kill_at_any_call_of_going_back_leaves_one_of_the_two_whole(tmp_path):
    moments = 0
    while True:
        target = tmp_path / str(moments) / "checkpoint"
        target.parent.mkdir()
        for text in ("1", "2"):
            checkpoint.publish(target, write(text))
        killed = ended_at_call(moments + 1, lambda: atomic.go_back(target))  # noqa: B023
        atomic.recover_folder(target)
        found = step_of(target)
        assert found in (1, 2)
        if not killed:
            break
        moments += 1
    assert found == 1
    assert not atomic.older_folder(target).exists()
    assert moments >= 5


@pytest.mark.parametrize("before", [True, False])
def test_disk_that_gives_back_other_bytes_fails_the_save_and_keeps_the_one_before(
    tmp_path, monkeypatch, before
):
    target = tmp_path / "checkpoint"
    if before:
        checkpoint.publish(target, write("1"))
    sync = atomic._sync

    def spoiling(path, forget=False):
        if path.name == "weights":
            path.write_text("3")
        sync(path, forget)

    monkeypatch.setattr(atomic, "_sync", spoiling)
    with pytest.raises(Corrupt, match=r"when it was read back.*check the disk") as refused:
        checkpoint.publish(target, write("2"))
    kept = "the one before it is untouched" if before else "there is none before it"
    assert kept in str(refused.value)
    assert "weights: the checksum of its 1 bytes is" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == (["checkpoint"] if before else [])
    assert not before or step_of(target) == 1


def test_read_back_is_the_disks_where_the_system_lets_go_of_its_pages(tmp_path, monkeypatch):
    forgotten = []
    forget = os.posix_fadvise

    def counted(descriptor, *args):
        forgotten.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        return forget(descriptor, *args)

    monkeypatch.setattr(os, "posix_fadvise", counted)
    checkpoint.publish(tmp_path / "checkpoint", write("1"))
    assert sorted(forgotten) == ["state.json", "weights"]


# ---- Through the command line ----


@pytest.fixture(scope="module")
def saved_twice(sluiceway, tiny_model, prose, tmp_path_factory):
    """A finished run of six steps with saves of steps 4 and 6, and its losses."""
    import yaml

    here = tmp_path_factory.mktemp("saved_twice")
    config = {
        "model": {"path": str(tiny_model)},
        "data": {"train": [str(prose)], "eval": [str(prose)], "sequence_length": 32},
        "train": {"steps": 6, "micro_batch": 2, "lr": 1e-2, "save_every": 4, "eval_sequences": 4},
        "engine": {"kind": "native"},
        "device": {"name": "host", "threads": 1},
    }
    (here / "run.yaml").write_text(yaml.safe_dump(config))
    outcome = sluiceway("train", here / "run.yaml", "--out", here / "out")
    assert outcome.code == 0, outcome.err
    return here / "out"


@pytest.fixture
def run(saved_twice, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved_twice, folder)
    return folder


def flip(path, place=None):
    raw = bytearray(path.read_bytes())
    place = len(raw) // 2 if place is None else place
    for k in range(4):
        raw[place + k] ^= 0xFF
    path.write_bytes(raw)


def losses(folder):
    return [(line["step"], line.get("loss")) for line in read_lines(folder)]


def tree(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_flipped_bytes_are_refused_by_every_reader_and_the_save_before_is_offered(
    sluiceway, run, tmp_path, name
):
    flip(run / "checkpoint" / name)
    before = tree(run)
    remedy = f"of step 4, is whole, and this goes on from it: sluiceway resume {run} --previous"
    words = f"checkpoint/{name}: the checksum of its", "expected", "the save is not usable", remedy
    for command in (["resume"], ["resume", "--set", "train.steps=8"], ["eval"]):
        assert_short_error(sluiceway(command[0], run, *command[1:]), 1, *words)
    assert_short_error(sluiceway("export", run, "--to", tmp_path / "model"), 1, *words)
    assert tree(run) == before
    assert not (tmp_path / "model").exists()
    model = run / "checkpoint"
    assert_short_error(sluiceway("eval", model, "--data", "pydoc"), 1, f"{name}: the checksum")
    setting = "--set", f"model.path={model}"
    outcome = sluiceway("train", run / "config.yaml", *setting, "--out", tmp_path / "new")
    assert_short_error(outcome, 1, f"{name}: the checksum")
    assert not (tmp_path / "new").exists()


def test_previous_goes_on_from_the_save_before_to_the_same_bits(sluiceway, run, saved_twice):
    flip(run / "checkpoint" / "model.safetensors")
    outcome = sluiceway("resume", run, "--previous")
    assert outcome.code == 0, outcome.err
    assert losses(run) == losses(saved_twice)
    for name in ("model.safetensors", "optimizer.pt"):
        new, old = (folder / "checkpoint" / name for folder in (run, saved_twice))
        assert new.read_bytes() == old.read_bytes()
    assert last_save(run, previous=True).step == 4


def test_previous_that_goes_no_further_cuts_the_metrics_and_drops_the_last(
    sluiceway, run, saved_twice
):
    outcome = sluiceway("resume", run, "--previous", "--set", "train.steps=4")
    assert outcome.code == 0, outcome.err
    assert losses(run) == losses(saved_twice)[:5]
    assert last_save(run).step == 4
    assert not (run / "checkpoint.old").exists()
    outcome = sluiceway("resume", run, "--previous")
    assert_short_error(outcome, 2, "--previous", "has no save before the last, expected")


def test_previous_that_is_refused_leaves_both_saves_and_the_metrics(sluiceway, run):
    before = tree(run)
    outcome = sluiceway("resume", run, "--previous", "--set", "train.steps=2")
    assert outcome.code == 2
    assert tree(run) == before
    flip(run / "checkpoint.old" / "optimizer.pt")
    before = tree(run)
    outcome = sluiceway("resume", run, "--previous")
    assert_short_error(outcome, 1, "checkpoint.old/optimizer.pt: the checksum", "--out NEW_FOLDER")
    assert tree(run) == before


def test_two_saves_that_are_not_whole_ask_for_a_new_folder(sluiceway, run):
    for save in ("checkpoint", "checkpoint.old"):
        flip(run / save / "optimizer.pt")
    words = "nor is the save before it whole", f"sluiceway train {run}/config.yaml --out NEW_FOLDER"
    assert_short_error(sluiceway("resume", run), 1, *words)
    shutil.rmtree(run / "checkpoint.old")
    assert_short_error(sluiceway("resume", run), 1, "there is none before it", words[1])


@pytest.mark.parametrize("kept", [True, False])
def test_run_without_its_last_save_is_refused_and_nothing_is_cut(sluiceway, run, kept):
    shutil.rmtree(run / "checkpoint")
    if not kept:
        shutil.rmtree(run / "checkpoint.old")
    before = tree(run)
    remedy = f"resume {run} --previous" if kept else f"train {run}/config.yaml --out NEW_FOLDER"
    outcome = sluiceway("resume", run)
    assert_short_error(outcome, 2, "has no save, expected checkpoint/", f"sluiceway {remedy}")
    assert tree(run) == before
    if not kept:
        with pytest.raises(InvalidArgument, match="has no save"):
            last_save(run)


def test_what_the_refusal_says_of_a_run_without_a_save_works(sluiceway, run, saved_twice, tmp_path):
    for save in ("checkpoint", "checkpoint.old"):
        shutil.rmtree(run / save)
    assert sluiceway("resume", run).code == 2
    outcome = sluiceway("train", run / "config.yaml", "--out", tmp_path / "again")
    assert outcome.code == 0, outcome.err
    assert losses(tmp_path / "again") == losses(saved_twice)


def test_save_of_the_first_format_is_resumed_and_said_to_have_no_checksums(
    sluiceway, run, saved_twice
):
    for save in ("checkpoint", "checkpoint.old"):
        path = run / save / "state.json"
        state = json.loads(path.read_text())
        del state["xxh3"]
        state |= {"format": 1, "files": {k: v["bytes"] for k, v in state["files"].items()}}
        path.write_text(json.dumps(state, indent=1) + "\n")
    outcome = sluiceway("resume", run, "--set", "train.steps=7")
    assert outcome.code == 0, outcome.err
    said = outcome.err.splitlines()
    assert said[0].startswith(f"sluiceway: {run}/checkpoint: saved without checksums (format 1)")
    assert said[1:] == ["sluiceway: train.steps was 6, is now 7"]
    assert json.loads((run / "checkpoint" / "state.json").read_text())["format"] == 2


# ---- The manifest itself ----


def test_every_flipped_byte_of_the_manifest_is_refused(run):
    path = run / "checkpoint" / "state.json"
    raw = path.read_bytes()
    checkpoint.read_state_file(path.parent)
    for place in range(len(raw)):
        for mask in (0x01, 0x10, 0x80):
            path.write_bytes(raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :])
            with pytest.raises(Corrupt, match=r"state\.json"):
                checkpoint.read_state_file(path.parent)


@pytest.mark.parametrize("change", ["format", "no seal", "format and no seal"])
def test_manifest_cannot_pass_for_one_without_checksums(run, change):
    path = run / "checkpoint" / "state.json"
    text = path.read_text()
    if "format" in change:
        text = text.replace('"format": 2', '"format": 1')
    if "no seal" in change:
        text = text.rpartition(",\n")[0] + "\n}\n"
    path.write_text(text)
    with pytest.raises(Corrupt, match="not the checksum of its text"):
        checkpoint.read_state_file(path.parent)


def test_manifest_names_every_file_of_a_save_with_the_sum_that_xxh128sum_prints(run):
    save = run / "checkpoint"
    files = checkpoint.load_state(save)[1]["files"]
    assert files.keys() == {path.name for path in save.iterdir()} - {"state.json"}
    assert {"model.safetensors", "optimizer.pt", "random.pt", "config.json"} <= files.keys()
    (save / "empty").write_bytes(b"")
    found = manifest.sums_of(save)["empty"]
    assert found == {"bytes": 0, "xxh3": "99aa06d3014798d86001c324468d497f"}
