"""`sluiceway store inspect | verify`: every bad day has its exit code and names the thing."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.
from conftest import assert_short_error
from sluiceway import _core
from sluiceway.commands import cli, store
from small_store import (
    BLOCK,
    CHUNK,
    CHUNKS,
    RUN_STATE,
    SUPERBLOCKS,
    TABLE,
    flip,
    make_store,
    newest_superblock,
    place_of,
    place_of_chunk,
    set_version,
)


def test_inspect_says_what_the_store_says_of_itself(sluiceway, tmp_path):
    paths = make_store(tmp_path, drives=2, slots=3)
    outcome = sluiceway("store", "inspect", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found == {**_core.open_store(paths).describe(), "warnings": found["warnings"]}
    text = sluiceway("store", "inspect", *paths).out
    for words in (found["id"], "step 2, generation 4", "step 1, generation 2", "state", "gradient",
                  "none in the superblocks", *paths):  # fmt: skip
        assert words in text


def test_verify_reads_everything_and_says_so(sluiceway, tmp_path):
    make_store(tmp_path)
    outcome = sluiceway("store", "verify", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert (said["ok"], said["wrong"], said["step"], said["pinned_step"]) == (True, [], 2, None)
    assert (said["chunks"], said["bytes"]) == (CHUNKS, CHUNKS * CHUNK)
    text = sluiceway("store", "verify", tmp_path).out
    assert text.startswith("step 2: 6 chunks, 48 KiB, read in ")
    assert text.endswith(": all checksums hold\n")


def test_damaged_chunks_are_listed_and_the_exit_code_is_one(sluiceway, tmp_path):
    (path,) = make_store(tmp_path)
    for chunk in (1, 4):
        flip(path, place_of_chunk(path, 2, chunk) + 9)
    outcome = sluiceway("store", "verify", tmp_path)
    assert_short_error(outcome, 1, "2 things are damaged")
    listed = [line.strip() for line in outcome.out.splitlines()[1:]]
    assert [line.partition(" at byte")[0] for line in listed] == [
        f"store: chunk {chunk} of region 0 (state)" for chunk in (1, 4)
    ]
    outcome = sluiceway("store", "verify", tmp_path, "--json")
    assert outcome.code == 1
    said = json.loads(outcome.out)
    assert said["ok"] is False
    assert said["wrong"] == listed
    assert sluiceway("store", "inspect", tmp_path).code == 0


def test_damaged_superblock_is_one_step_back_and_is_said(sluiceway, tmp_path):
    (path,) = make_store(tmp_path)
    flip(path, newest_superblock(path) + 40)
    found = json.loads(sluiceway("store", "inspect", tmp_path, "--json").out)
    assert found["live"]["step"] == 1
    assert "superblock: its checksum is" in found["damage"]
    outcome = sluiceway("store", "verify", tmp_path)
    assert_short_error(outcome, 1, "1 thing is damaged")
    assert found["damage"] in outcome.out


def test_damaged_run_state_is_found(sluiceway, tmp_path):
    (path,) = make_store(tmp_path)
    flip(path, place_of(path, RUN_STATE))
    outcome = sluiceway("store", "verify", tmp_path)
    assert_short_error(outcome, 1, "1 thing is damaged")
    assert "the run state at byte" in outcome.out


def truncate(path):
    os.truncate(path, os.path.getsize(path) - BLOCK)


def flip_both_superblocks(path):
    for at in SUPERBLOCKS:
        flip(path, at + 40)


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (lambda path: os.unlink(path), 2, ["holds no drive0.sws"]),
        (lambda path: shutil.rmtree(os.path.dirname(path)), 2, ["does not exist"]),
        (lambda path: Path(path).write_text("a letter"), 2, ["is no store: it has 8 bytes"]),
        (lambda path: Path(path).write_bytes(bytes(1 << 16)), 2, ["is no store, or making it"]),
        (lambda path: flip(path, 0), 2, ["is no store, or making it"]),
        (lambda path: set_version(path, 2), 2, ["store version is 2, expected 1"]),
        (truncate, 1, ["drive0.sws is ", "expected "]),
        (lambda path: flip(path, 20), 1, ["drive header: its checksum is"]),
        (flip_both_superblocks, 1, ["neither copy can be read"]),
        (lambda path: flip(path, place_of(path, TABLE) + 1), 1, ["the table at byte"]),
    ],
    ids=["no drive", "no folder", "text", "zeros", "magic", "future", "truncated", "header",
         "superblocks", "table"],
)  # fmt: skip
def test_what_cannot_be_opened_is_refused_in_two_lines(
    sluiceway, tmp_path, command, spoil, code, words
):
    (path,) = make_store(tmp_path / "store")
    spoil(path)
    outcome = sluiceway("store", command, tmp_path / "store", "--json")
    assert_short_error(outcome, code, *words)
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("a1 a0", "is drive 1 of 2 of store"),
        ("a0", "is drive 0 of 2 of store"),
        ("a0 b1", "expected drive 1 of 2 of store"),
        ("a0 a0", "expected drive 1 of 2 of store"),
    ],
)
def test_drives_of_several_stores_or_out_of_order_are_refused(sluiceway, tmp_path, chosen, words):
    drives = {}
    for name in "ab":
        for number, path in enumerate(make_store(tmp_path / name, drives=2)):
            drives[f"{name}{number}"] = path
    outcome = sluiceway("store", "verify", *(drives[name] for name in chosen.split()))
    assert_short_error(outcome, 2, words)


def test_store_that_is_written_by_another_is_refused_with_three(sluiceway, tmp_path):
    paths = make_store(tmp_path)
    writer = _core.open_store(paths, writable=True)
    for command in ("inspect", "verify"):
        assert_short_error(sluiceway("store", command, tmp_path), 3, "open in another process")
    writer.close()
    reader = _core.open_store(paths)
    assert sluiceway("store", "verify", tmp_path).code == 0
    reader.close()


def test_ctrl_c_ends_verify_with_130_and_frees_the_store(tmp_path, monkeypatch, capsys):
    paths = make_store(tmp_path)

    class Pressing:
        def __enter__(self):
            return lambda count: os.kill(os.getpid(), signal.SIGINT)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(store, "meter", lambda *_: Pressing())
    assert cli.run(["store", "verify", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err
    _core.open_store(paths, writable=True).close()


def test_store_in_memory_is_opened_with_a_warning(sluiceway, memory_folder):
    make_store(memory_folder)
    assert sluiceway("store", "verify", memory_folder).code == 0
    outcome = sluiceway("store", "inspect", memory_folder)
    assert outcome.code == 0
    assert "its file system has no direct I/O" in outcome.out


def test_store_alone_is_its_help(sluiceway):
    outcome = sluiceway("store")
    assert outcome.code == 2
    assert "inspect" in outcome.out
    assert_short_error(sluiceway("store", "look"), 2, "No such command 'look'", "sluiceway store")
