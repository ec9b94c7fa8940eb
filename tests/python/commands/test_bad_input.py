"""Bad input ends with an exit code and one or two lines: what is wrong, and what was expected."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import transformers
from conftest import assert_short_error, read_lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["No such command 'trian'"]),
        (["train"], ["Missing argument"]),
        (["train", "none.yaml"], ["none.yaml: cannot read the config"]),
        (["train", "bad.yaml"], ["bad.yaml:3: unknown key", "did you mean train.steps?"]),
        (["train", "run.yaml", "--set", "train.lr=x"], ["train.lr is 'x', expected"]),
        (["train", "run.yaml", "--nonsense"], ["--nonsense"]),
        (["train", "ratio.yaml"], ["ratio.yaml:3: engine.ratio is 1.5, expected 'auto' or l"]),
        (
            ["train", "run.yaml", "--set", "engine.ratio=0"],
            ["engine.ratio is 0, expected 'auto' or greater"],
        ),
        (
            ["plan", "run.yaml", "--set", "engine.ratio=-0.5"],
            ["engine.ratio is -0.5, expected 'auto'"],
        ),
        (["plan", "run.yaml", "--set", "engine.ratio=.nan"], ["engine.ratio is nan, expected"]),
        (["train", "size.yaml"], ["size.yaml:3: budget.device size: '4 GoB', expected bytes"]),
        (
            [
                "plan",
                "run.yaml",
                "--set",
                "engine={kind: zo,tier: host,mode: write_back,noise: lowrank}",
            ],
            ["is not in"],
        ),
        (
            ["train", "run.yaml", "--set", "store.path=x"],
            ["engine.kind subspace keeps", "leave it out"],
        ),
        (["resume", "none"], ["none: is not a folder, expected the folder of a run"]),
        (["export", "none", "--to", "x"], ["none: is not a folder"]),
        (["plan", "none.yaml"], ["none.yaml"]),
    ],
)
def test_wrong_command_is_told_in_two_lines_without_loading_torch(
    python_m_sluiceway, tmp_path, arguments, words
):
    (tmp_path / "bad.yaml").write_text("model: {path: m}\ntrain:\n  step: 1\ndata: {train: x}\n")
    good = "model: {path: m}\ndata: {train: x}\n"
    (tmp_path / "run.yaml").write_text(good)
    (tmp_path / "ratio.yaml").write_text(good + "engine: {ratio: 1.5}\n")
    (tmp_path / "size.yaml").write_text(good + "budget: {device: 4 GoB}\n")
    outcome = python_m_sluiceway(*arguments, cwd=tmp_path)
    assert_short_error(outcome, 2, *words)


def test_python_m_sluiceway_trains(python_m_sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model, train={"steps": 1})
    outcome = python_m_sluiceway("train", config, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    folder = next((tmp_path / "runs").iterdir())
    assert folder.name.startswith("run-")
    assert str(folder.relative_to(tmp_path)) in outcome.out.splitlines()[-1]


def test_a_pipe_or_a_device_is_refused_at_once(sluiceway, tiny_model, write_config, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        outcome = sluiceway("train", path, "--out", tmp_path / "out")
        assert_short_error(outcome, 2, f"{path}: is no regular file, expected a YAML file")
        config = write_config(tiny_model, data={"train": [str(path)]})
        outcome = sluiceway("train", config, "--out", tmp_path / "out")
        assert_short_error(outcome, 2, f"data.train: {path} is not a regular file")
    assert not (tmp_path / "out").exists()


def test_debug_shows_the_traceback(python_m_sluiceway, tmp_path):
    outcome = python_m_sluiceway("train", "none.yaml", "--debug", cwd=tmp_path)
    assert outcome.code == 2
    assert "Traceback" in outcome.err


def test_folder_that_is_not_empty_is_refused_and_resume_named(
    sluiceway, tiny_model, write_config, finished, tmp_path
):
    config = write_config(tiny_model)
    outcome = sluiceway("train", config, "--out", finished[0])
    assert_short_error(outcome, 2, "is not empty", f"sluiceway resume {finished[0]}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    outcome = sluiceway("train", config, "--out", tmp_path / "other")
    assert_short_error(outcome, 2, "is not empty", "choose another --out")


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda d: d / "none", 2, ["does not exist, expected a folder with config.json"]),
        (lambda d: (d / "e").mkdir() or d / "e", 2, ["has no config.json"]),
        (lambda d: _copy(d, without="model.safetensors"), 2, ["has no weights"]),
        (lambda d: _copy(d, without="tokenizer.json"), 2, ["no tokenizer"]),
        (lambda d: _copy(d, cut=("model.safetensors", 1000)), 1, ["copy it again"]),
        (lambda d: _copy(d, cut=("model.safetensors", 4)), 1, ["4 bytes, expected"]),
        (lambda d: _copy(d, cut=("config.json", 10)), 2, ["cannot be read as JSON"]),
        (lambda d: _copy(d, cut=("tokenizer.json", 100)), 2, ["no tokenizer"]),
        (lambda d: _shards(d, lambda shard: os.truncate(shard, 50)), 1, ["50 bytes, expected"]),
        (lambda d: _shards(d, os.unlink), 2, [".safetensors: cannot be read, No such file"]),
        (
            lambda d: _copy(d, config={"quantization_config": {"quant_method": "awq"}}),
            2,
            ["is quantised (awq in config.json)", "the model that this one was quantised from"],
        ),
        (lambda d: _copy(d, config={"vocab_size": 300}), 2, ["is (257, 32), expected (300"]),
        (lambda d: _copy(d, config={"num_hidden_layers": 3}), 2, ["lack", "first"]),
        (lambda d: _copy(d, config={"model_type": "abacus"}), 2, ["transformers cannot load"]),
        (lambda d: _copy(d, config={"vocab_size": 100}), 2, ["the model has only 100 embeddings"]),
        (
            lambda d: _copy(d, config={"max_position_embeddings": 16}),
            2,
            ["data.sequence_length is 32, expected at most 16"],
        ),
    ],
)
def test_bad_model_folder_is_told_what_is_wrong_with_it(
    sluiceway, write_config, tiny_model, tmp_path, monkeypatch, make, code, words
):
    monkeypatch.setattr(_copy, "source", tiny_model, raising=False)
    config = write_config(make(tmp_path))
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, code, *words)
    assert not (tmp_path / "out").exists()


def _copy(folder, without=None, cut=None, config=None):
    """A copy of the tiny model with one thing wrong."""
    model = folder / "model"
    model.mkdir()
    for path in _copy.source.iterdir():
        if path.name != without:
            (model / path.name).write_bytes(path.read_bytes())
    if cut:
        os.truncate(model / cut[0], cut[1])
    if config:
        shape = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**shape, **config}))
    return model


def _shards(folder, spoil):
    """The tiny model in several files, one of which is spoiled."""
    from transformers import AutoModelForCausalLM

    model = _copy(folder, without="model.safetensors")
    AutoModelForCausalLM.from_pretrained(_copy.source).save_pretrained(model, max_shard_size="20KB")
    spoil(sorted(model.glob("*.safetensors"))[1])
    return model


CHAT = [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "three"}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"train": ["none.txt"]}, ["data.train: there is no file", "none.txt"]),
        ({"train": ["*.none"]}, ["data.train: no file matches"]),
        ({"train": ["empty.txt"]}, ["has no text"]),
        ({"train": ["bad.jsonl"]}, ["bad.jsonl:2", "is not JSON"]),
        ({"train": ["long.jsonl"], "packing": False}, ["long.jsonl:1: 100 tok"]),
        ({"train": ["bare"]}, ["bare is a folder without files of data"]),
        ({"train": ["short.txt/x"]}, ["data.train: there is no file", "short.txt/x"]),
        ({"eval": ["empty.txt"]}, ["data.eval: ", "empty.txt has no text"]),
        ({"train": ["empty.txt"], "format": "jsonl"}, ["data.train: ", "has no text"]),
        ({"train": ["chat.jsonl"]}, ["chat.jsonl:2: ", "no chat template"]),
        ({"train": ["half.jsonl"]}, ["half.jsonl:1: has \\ud83d, half of a"]),
        ({"train": ["digits.jsonl"]}, ["digits.jsonl:1: is not JSON"]),
    ],
)
def test_bad_data_is_told_with_file_and_line(
    sluiceway, tiny_model, write_config, tmp_path, data, words
):
    (tmp_path / "bare").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text"\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": "x" * 99}) + "\n")
    chat = json.dumps({"text": "a"}) + "\n" + json.dumps({"messages": CHAT}) + "\n"
    (tmp_path / "chat.jsonl").write_text(chat)
    (tmp_path / "half.jsonl").write_text('{"text": "\\ud83d"}\n')
    (tmp_path / "digits.jsonl").write_text('{"text": ' + "9" * 5000 + "}\n")
    outcome = sluiceway("train", write_config(tiny_model, data=data), cwd=tmp_path)
    assert_short_error(outcome, 2, *words)
    assert not (tmp_path / "runs").exists()


def test_refused_run_leaves_the_folders_that_were_there_and_no_others(
    sluiceway, tiny_model, write_config, tmp_path
):
    (tmp_path / "there").mkdir()
    config = write_config(tiny_model, engine={"kind": "subspace"})
    for out in ("there", "new/deep"):
        outcome = sluiceway("train", config, "--out", tmp_path / out)
        assert_short_error(outcome, 2, "no trainable linear weight")
    assert list((tmp_path / "there").iterdir()) == []
    assert not (tmp_path / "new").exists()


def test_file_in_another_encoding_is_named_with_its_line_before_the_first_step(
    sluiceway, tiny_model, write_config, tmp_path
):
    rows = "name,text\n" + "a,plain words of a row of this table\n" * 30 + "b,été\n" * 3
    (tmp_path / "x.csv").write_bytes(rows.encode("cp1252"))
    config = write_config(tiny_model, data={"train": [str(tmp_path / "x.csv")], "eval": []})
    outcome = sluiceway("train", config, "--dry-run")
    assert outcome.code == 0, outcome.err
    assert f"not UTF-8: 6, the first in {tmp_path / 'x.csv'}:32; " in outcome.err
    assert "iconv" in outcome.err


def test_model_without_the_files_of_its_tokenizer_is_refused(
    sluiceway, tiny_model, write_config, tmp_path
):
    shape = {"vocab_size": 257, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    folder, heads = tmp_path / "m", {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(**shape, **heads)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    for command in (["train", write_config(folder)], ["chat", folder, "--prompt", "a"]):
        assert_short_error(sluiceway(*command), 2, "tokenizer", "model.path")


def test_bytes_that_are_not_utf8_are_counted_and_training_goes_on(
    sluiceway, tiny_model, write_config, tmp_path, prose
):
    (tmp_path / "x.txt").write_bytes(b"good \xff bad \xc3( \xe2\x82 end " + prose.read_bytes())
    config = write_config(tiny_model, data={"train": [str(tmp_path / "x.txt")]}, train={"steps": 1})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "4 bytes were not UTF-8" in outcome.out.splitlines()[-1]
    assert f"not UTF-8: 4, the first in {tmp_path / 'x.txt'}:1; " in outcome.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["data"]["replaced_bytes"] == 4
    outcome = sluiceway("eval", tiny_model, "--data", tmp_path / "x.txt", "--sequences", 1)
    assert "4 bytes were not UTF-8" in outcome.out


def test_learning_rate_that_explodes_stops_with_the_step_named_and_the_folder_kept(
    sluiceway, tiny_model, write_config, tmp_path
):
    train = {"steps": 50, "lr": 1e30, "schedule": "constant", "max_skipped": 3, "max_norm": None}
    config = write_config(tiny_model, train=train)
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, 1, "skipped, as were all of the last 3 steps")
    step = read_lines(tmp_path / "out")[-1]["step"]
    assert f"step {step}:" in outcome.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["skipped_steps"]) == ("diverged", 3)


def test_pinning_on_one_core_is_refused_and_says_what_to_set(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, device={"pin": True})
    cores = os.sched_getaffinity(0)
    server = sluiceway.server_pid
    os.sched_setaffinity(server, {min(cores)})
    try:
        outcome = sluiceway("train", config, "--out", tmp_path / "out")
    finally:
        os.sched_setaffinity(server, cores)
    assert_short_error(outcome, 2, "may use 1 core, but pinning needs 2", "device.pin: false")


@pytest.mark.parametrize("command", ["train", "resume"])
def test_more_threads_than_cores_are_refused_before_anything_is_made(
    sluiceway, tiny_model, write_config, finished, tmp_path, command
):
    cores = len(os.sched_getaffinity(0))
    many = 4 * cores
    if command == "train":
        config = write_config(tiny_model, device={"threads": many})
        outcome = sluiceway("train", config, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
    else:
        before = {p: p.read_bytes() for p in finished[0].rglob("*") if p.is_file()}
        outcome = sluiceway("resume", finished[0], "--set", f"device.threads={many}")
        assert {p: p.read_bytes() for p in finished[0].rglob("*") if p.is_file()} == before
        outcome.err = outcome.err.partition("\n")[2]  # Says what --set changes first.
    words = f"device.threads: {many} threads on {cores} cores", f"expected at most {cores}"
    assert_short_error(outcome, 2, *words)


def test_plan_and_eval_of_a_larger_machines_run_take_the_cores_there_are(
    sluiceway, tiny_model, write_config, finished, tmp_path
):
    many = 4 * len(os.sched_getaffinity(0))
    config = write_config(tiny_model, device={"threads": many})
    outcome = sluiceway("plan", config, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["seconds_per_step"] > 0
    assert f"train would be refused here: device.threads: {many} threads" in outcome.err
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("threads: 1", f"threads: {many}", 1))
    assert f" threads: {many}" in path.read_text()
    outcome = sluiceway("eval", run)
    assert outcome.code == 0, outcome.err


def test_gpu_that_is_not_there_is_unavailable(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model, device={"name": "cuda:7"})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, 2, "this machine has no cuda:7, it has host")


def test_several_processes_of_a_launcher_are_refused(
    python_m_sluiceway, tiny_model, write_config, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = python_m_sluiceway("train", write_config(tiny_model), "--out", tmp_path / "run")
    assert_short_error(outcome, 2, "a launcher started 2 processes")
    assert not (tmp_path / "run").exists()
