"""Cases that resume refuses, leaving config, data, save and metrics unchanged."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import yaml
from conftest import assert_short_error, read_lines


def test_save_that_cannot_be_written_is_told_and_the_one_before_is_kept(
    sluiceway, tiny_model, write_config, tmp_path
):
    folder = tmp_path / "out"
    assert sluiceway("train", write_config(tiny_model), "--out", folder).code == 0
    (folder / "checkpoint.new").write_text("a file where the save's folder should be")
    outcome = sluiceway("resume", folder, "--set", "train.steps=7")
    assert_short_error(outcome, 1, "the save could not be written, File exists")
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    assert state["position"]["step"] == 6


def test_resume_takes_another_way_to_the_disk_and_keeps_what_was_set(
    sluiceway, tiny_model, write_config, tmp_path
):
    folder = tmp_path / "out"
    begun = write_config(tiny_model), "--out", folder, "--set", "device.threads=1"
    assert sluiceway("train", *begun).code == 0
    outcome = sluiceway("resume", folder, "--set", "train.steps=7", "--set", "store.io=posix")
    assert outcome.code == 0
    assert "store.io was auto, is now posix" in outcome.err
    outcome = sluiceway("resume", folder, "--set", "train.steps=8")
    assert outcome.code == 0
    assert "store.io" not in outcome.err
    assert "device.threads" not in outcome.err
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert (kept["device"]["threads"], kept["store"]["io"]) == (1, "posix")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (["train.micro_batch=4"], ["resume: train.micro_batch was 2, is now 4; restore the"]),
        (
            ["train.micro_batch=4", "train.steps=9", "train.seed=7"],
            ["resume: train.micro_batch was 2, is now 4, train.seed was 0, is now 7; restore"],
        ),
        (["engine={kind: subspace}"], ["engine.kind was native, is now subspace", "keys more"]),
        (["data.train=/nowhere.txt"], ["there is no file /nowhere.txt"]),
        (["train.steps=2"], ["train.steps is 2, expected at least 6, the step of the last save"]),
        (["train.sted=1"], ["unknown key train.sted, did you mean train.seed?"]),
    ],
)
def test_resume_refuses_what_cannot_change(sluiceway, finished, override, words):
    before = (finished[0] / "config.yaml").read_text()
    settings = [word for one in override for word in ("--set", one)]
    outcome = sluiceway("resume", finished[0], *settings)
    assert_short_error(outcome, 2, *words)
    assert (finished[0] / "config.yaml").read_text() == before


def test_config_that_was_edited_in_the_run_folder_is_held_against_the_save(
    sluiceway, finished, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    path = folder / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["train"] |= {"micro_batch": 4, "seed": 7}
    path.write_text(yaml.safe_dump(tree))
    words = "resume: train.micro_batch was 2, is now 4, train.seed was 0, is now 7; restore"
    assert_short_error(sluiceway("resume", folder), 2, words)
    tree["train"] |= {"micro_batch": 2, "seed": 0, "steps": 7}
    path.write_text(yaml.safe_dump(tree))
    outcome = sluiceway("resume", folder)
    assert outcome.code == 0, outcome.err
    assert outcome.err == "sluiceway: train.steps was 6, is now 7\n"
    assert "native: goes on from step 6, that of its save\n" in outcome.out
    path.write_text("model: {path: m\n")
    assert_short_error(sluiceway("resume", folder), 2, "config.yaml:2: is not YAML")


def test_run_folder_without_a_save_is_refused_with_the_command_that_begins_again(
    sluiceway, finished, tmp_path
):
    folder = tmp_path / "run"
    folder.mkdir()
    assert_short_error(sluiceway("resume", folder), 2, "has no config.yaml, expected the folder of")
    shutil.copyfile(finished[0] / "config.yaml", folder / "config.yaml")
    (folder / "metrics.jsonl").write_text('{"step": 0, "eval_l')
    (folder / "checkpoint.new").mkdir()
    words = "has no save, expected checkpoint/", f"train {folder}/config.yaml --out NEW_FOLDER"
    assert_short_error(sluiceway("resume", folder), 2, *words)
    assert (folder / "metrics.jsonl").read_text() == '{"step": 0, "eval_l'
    outcome = sluiceway("train", folder / "config.yaml", "--out", folder)
    assert_short_error(outcome, 2, "is not empty, expected a new folder; choose another --out")


def test_line_of_metrics_that_is_damaged_is_named_and_nothing_is_cut(sluiceway, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0" * len(lines[2][:-1]) + b"\n"
    path.write_bytes(b"".join(lines))
    config = (folder / "config.yaml").read_bytes()
    outcome = sluiceway("resume", folder, "--set", "train.steps=7")
    assert_short_error(outcome, 1, "metrics.jsonl:3: is not a line of metrics", "remove the line")
    assert (folder / "config.yaml").read_bytes() == config
    assert path.read_bytes() == b"".join(lines)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert sluiceway("resume", folder, "--set", "train.steps=7").code == 0
    assert [line["step"] for line in read_lines(folder)] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.old"])
def test_a_save_that_is_a_link_is_refused_before_the_first_step(
    sluiceway, finished, tmp_path, name
):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    shutil.copytree(folder / "checkpoint", tmp_path / "elsewhere")
    shutil.rmtree(folder / name)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    before = (folder / "metrics.jsonl").read_bytes()
    outcome = sluiceway("resume", folder, "--set", "train.steps=8")
    assert_short_error(outcome, 2, f"{folder}/{name}: is a symbolic link, expected a folder")
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert sluiceway("eval", folder).code == 0  # Only reads.


@pytest.mark.parametrize(
    ("keep", "words"), [(None, "has no line"), (0, "has no line"), (4, "ends with step 3")]
)
def test_metrics_that_are_behind_the_save_are_told(sluiceway, finished, tmp_path, keep, words):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    if keep is not None:
        path.write_bytes(b"".join(lines[:keep]))
    outcome = sluiceway("resume", folder, "--set", "train.steps=7")
    assert outcome.code == 0, outcome.err
    told = f"sluiceway: {path}: {words}, but the save is of step 6; the run goes on, and its"
    assert told in outcome.err
    assert [line["step"] for line in read_lines(folder)] == [*range(keep or 0), 7]


def test_resume_refuses_other_data_than_the_run_began_with(
    sluiceway, tiny_model, write_config, tmp_path, prose
):
    text = tmp_path / "mine.txt"
    text.write_text(prose.read_text())
    config = write_config(tiny_model, data={"train": [str(text)]}, train={"steps": 1})
    assert sluiceway("train", config, "--out", tmp_path / "out").code == 0
    text.write_text("Z" + prose.read_text()[1:])
    before = (tmp_path / "out" / "config.yaml").read_bytes()
    outcome = sluiceway("resume", tmp_path / "out", "--set", "train.steps=2")
    assert_short_error(outcome, 2, "the data has changed since the run began")
    assert (tmp_path / "out" / "config.yaml").read_bytes() == before


def test_save_with_a_cut_file_is_corrupt_and_nothing_is_overwritten(
    sluiceway, tiny_model, write_config, tmp_path
):
    folder = tmp_path / "out"
    assert sluiceway("train", write_config(tiny_model), "--out", folder).code == 0
    moments = folder / "checkpoint" / "optimizer.pt"
    os.truncate(moments, 100)
    outcome = sluiceway("resume", folder, "--set", "train.steps=9")
    assert_short_error(outcome, 1, "optimizer.pt: 100 bytes, expected")
    assert "steps: 9" not in (folder / "config.yaml").read_text()
    assert moments.stat().st_size == 100


def test_model_and_data_that_moved_do_not_keep_a_run_from_going_on(
    sluiceway, tiny_model, write_config, prose, tmp_path
):
    model, text, folder = tmp_path / "model", tmp_path / "a.txt", tmp_path / "out"
    shutil.copytree(tiny_model, model)
    shutil.copy(prose, text)
    config = write_config(model, data={"train": [str(text)]})
    assert sluiceway("train", config, "--out", folder).code == 0
    model.rename(tmp_path / "moved")
    moved = text.rename(tmp_path / "b.txt")
    outcome = sluiceway(
        "resume", folder, "--set", "train.steps=7",
        "--set", f"model.path={tmp_path / 'moved'}", "--set", f"data.train=[{moved}]",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert read_lines(folder)[-1]["step"] == 7
