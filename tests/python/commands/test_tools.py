"""`sluiceway eval` and shell completion, as a user runs them."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys

import pytest
from conftest import assert_short_error, read_lines
from sluiceway.base.meter import meter


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run, to be spoiled."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    return folder


# ---- What eval says ----


def test_run_evaluates_to_the_loss_that_training_ended_with(sluiceway, finished):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    outcome = sluiceway("eval", folder, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said["loss"] == read_lines(folder)[-1]["eval_loss"]
    assert said["perplexity"] == pytest.approx(math.exp(said["loss"]))
    assert (said["step"], said["sequences"], said["tokens"]) == (6, 4, 4 * 31)
    assert said["seconds"] > 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_data_is_files_and_globs_and_every_sequence_counts(sluiceway, tiny_model, prose, tmp_path):
    for name in ("a.txt", "b.txt", "c.prose"):
        (tmp_path / name).write_text(prose.read_text()[:640])
    outcome = sluiceway(
        "eval", tiny_model, "--data", "*.txt", "--data", "c.prose", "--json", cwd=tmp_path
    )
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    # Three texts of 640 bytes and an end each; the model's context is 128.
    assert said["data"]["sequence_length"] == 128
    assert said["sequences"] == said["sequences_in_data"] == 3 * 641 // 128
    assert said["tokens"] == said["sequences"] * 127
    assert said["loss"] == pytest.approx(math.log(257), abs=0.5)  # Random weights, 257 tokens.


def test_conversations_count_the_turns_of_the_assistant_alone(sluiceway, tiny_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    turns = [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "three"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    outcome = sluiceway(
        "eval", model, "--data", tmp_path / "chat.jsonl", "--format", "jsonl", "--no-packing",
        "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["tokens"] == len("three;")


def test_person_gets_one_line_with_loss_perplexity_tokens_and_seconds(
    sluiceway, finished, tiny_model, prose
):
    outcome = sluiceway("eval", finished[0], "--data", prose, "--sequences", 2)
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    (line,) = outcome.out.splitlines()
    for words in (f"{finished[0]}: step 6: loss ", "nats per token, perplexity ", "62 tokens in ",
                  "2 of ", f"from {prose}"):  # fmt: skip
        assert words in line


def test_loss_that_is_not_finite_is_said_and_null_in_json(sluiceway, tiny_model, tmp_path):
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    options = ["--data", "pydoc", "--sequences", 1]
    said = json.loads(sluiceway("eval", model, *options, "--json").out)
    assert (said["loss"], said["perplexity"], said["tokens"]) == (None, None, 127)
    assert "loss is not finite, perplexity -" in sluiceway("eval", model, *options).out


class Stream(io.StringIO):
    """A stand-in for stderr that is a terminal or not."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_goes_to_stderr_when_that_is_a_terminal_and_nowhere_else(
    monkeypatch, capsys, terminal
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Stream(terminal))
    with meter("evaluate", 10) as advance:
        advance(4)
    shown = sys.stderr.getvalue()
    assert ("evaluate" in shown and "4/10" in shown) == terminal
    assert bool(shown) == terminal
    assert capsys.readouterr().out == ""


# ---- What eval refuses ----


def edited(model, name, **keys):
    """Change keys of a JSON file of a model folder."""
    path = model / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.mark.parametrize(
    ("spoil", "options", "code", "words"),
    [
        (shutil.rmtree, [], 2, ["model: is not there, expected the folder of a run or"]),
        (
            lambda m: (m / "config.json").unlink(),
            [],
            2,
            ["has neither config.yaml nor config.json"],
        ),
        (lambda m: os.truncate(m / "model.safetensors", 999), [], 1, ["999 bytes, expected"]),
        (lambda m: (m / "tokenizer.json").unlink(), [], 2, ["has no tokenizer"]),
        (
            lambda m: edited(m, "config.json", vocab_size=99),
            [],
            2,
            ["the model has only 99 embeddings"],
        ),
        (
            lambda m: None,
            ["--sequence-length", 129],
            2,
            ["data.sequence_length is 129, expected at most 128, the context of"],
        ),
        (lambda m: None, ["--sequence-length", 1], 2, ["--sequence-length"]),
        (lambda m: None, ["--dtype", "int4"], 2, ["--dtype", "bf16"]),
        (lambda m: None, ["--data", "none.txt"], 2, ["there is no file none.txt"]),
        (
            lambda m: None,
            ["--data", "bad.jsonl", "--format", "jsonl"],
            2,
            ["bad.jsonl:2, column 8: is not JSON"],
        ),
        (
            lambda m: None,
            ["--data", "chat.jsonl", "--format", "jsonl"],
            2,
            ["chat.jsonl:1: has messages, but the model's tokenizer has no chat template"],
        ),
        (
            lambda m: None,
            ["--data", "long.txt", "--no-packing"],
            2,
            ["long.txt:1: 1001 tokens, expected at most data.sequence_length, 128"],
        ),
    ],
)
def test_eval_says_what_is_wrong_in_two_lines(
    sluiceway, tiny_model, tmp_path, spoil, options, code, words
):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text"\n')
    turns = [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "three"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "long.txt").write_text("x" * 1000)
    spoil(model)
    data = [] if "--data" in options else ["--data", "pydoc"]
    assert_short_error(sluiceway("eval", model, *data, *options, cwd=tmp_path), code, *words)


def test_data_must_be_named_where_nothing_else_does(sluiceway, tiny_model, run):
    assert_short_error(sluiceway("eval", tiny_model), 2, "--data is missing, and", "is no run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("eval: [pydoc]", "eval: []"))
    assert_short_error(sluiceway("eval", run), 2, "--data is missing, and", "has no data.eval")


def test_run_without_a_save_cannot_be_evaluated(sluiceway, run):
    shutil.rmtree(run / "checkpoint")
    assert_short_error(
        sluiceway("eval", run), 2, "has no save", f"sluiceway resume {run} --previous"
    )


# ---- Shell completion ----


def completions(python_m_sluiceway, monkeypatch, tmp_path, words):
    """Completions in bash after these words, from an interpreter that cannot load torch."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was loaded')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("_SLUICEWAY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    outcome = python_m_sluiceway()
    assert outcome.code == 0, outcome.err
    return outcome.out.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sluiceway", "e"], {"eval", "export"}),
        (["sluiceway", "eval", "--pa"], {"--packing"}),
        (["sluiceway", "export", "--dtype", "b"], {"bf16"}),
    ],
)
def test_completion_offers_commands_options_and_values_without_loading_torch(
    python_m_sluiceway, monkeypatch, tmp_path, words, expected
):
    assert set(completions(python_m_sluiceway, monkeypatch, tmp_path, words)) == expected


def test_completion_is_shown_and_installed(python_m_sluiceway, monkeypatch, tmp_path):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # Name the shell.
    monkeypatch.setenv("HOME", str(tmp_path))
    outcome = python_m_sluiceway("--show-completion", "bash")
    assert outcome.code == 0, outcome.err
    assert "_SLUICEWAY_COMPLETE=complete_bash" in outcome.out
    outcome = python_m_sluiceway("--install-completion", "bash")
    assert outcome.code == 0, outcome.err
    installed = tmp_path / ".bash_completions" / "sluiceway.sh"
    assert "_SLUICEWAY_COMPLETE=complete_bash" in installed.read_text()
    assert str(installed) in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["eval", "--help"], ["export", "--help"], ["doctor", "--help"],
     ["bench", "--help"], ["eval", "none"], ["export", "none", "--to", "x"]],
)  # fmt: skip
def test_help_and_refusals_do_not_load_torch(python_m_sluiceway, monkeypatch, tmp_path, arguments):
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was loaded')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = python_m_sluiceway(*arguments, cwd=tmp_path)
    assert outcome.code == (2 if "none" in arguments or not arguments else 0), outcome.err
    assert "torch was loaded" not in outcome.err
