"""Every command in an interpreter of its own, one after the other, as a user types them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Outcome, assert_short_error, read_lines
from report_pages import Page, console_of

STEPS = 4


def transformers_loss(folder, documents, length, sequences):
    """Mean loss of a model over packed documents, by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (c.from_pretrained(folder) for c in (AutoTokenizer, AutoModelForCausalLM))
    ids = []
    for text in documents:
        ids += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    with torch.no_grad():
        losses = [
            model(input_ids=row, labels=row).loss.item()
            for k in range(sequences)
            for row in [torch.tensor([ids[k * length : (k + 1) * length]])]
        ]
    return sum(losses) / len(losses)


@pytest.fixture(scope="module")
def config(small_model, prose, tmp_path_factory) -> Path:
    """A run of the default engine with cores, so that something crosses, beside plain AdamW."""
    path = tmp_path_factory.mktemp("session") / "run.yaml"
    tree = {
        "model": {"path": str(small_model)},
        "data": {"train": [str(prose)], "eval": ["pydoc"], "sequence_length": 32},
        "compare": "native",
        "engine": {"codec": "block_random"},
        "train": {"steps": STEPS - 1, "micro_batch": 2, "lr": 1e-3, "eval_sequences": 4},
        "device": {"name": "host", "threads": 1},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def said(python_m_sluiceway, config):
    """Run a command with --json beside the config: it prints one object, and nothing else."""

    def run(*arguments: object) -> dict:
        outcome = python_m_sluiceway(*arguments, "--json", cwd=config.parent)
        assert outcome.code == 0, outcome.err
        assert outcome.err == ""
        return json.loads(outcome.out, parse_constant=pytest.fail)

    return run


@pytest.fixture(scope="module")
def trained(said, config) -> tuple[Path, dict]:
    """The run, trained; its folder and its summary."""
    summary = said("train", config.name, "--out", "out")
    assert (summary["folder"], summary["steps"]) == ("out", STEPS - 1)
    return config.parent / "out", summary


@pytest.fixture(scope="module")
def resumed(python_m_sluiceway, config, trained) -> tuple[Path, dict]:
    """The same for one step more; a change of the config is said on stderr."""
    outcome = python_m_sluiceway(
        "resume", "out", "--set", f"train.steps={STEPS}", "--json", cwd=config.parent
    )
    assert outcome.code == 0, outcome.err
    assert outcome.err == f"sluiceway: train.steps was {STEPS - 1}, is now {STEPS}\n"
    return trained[0], json.loads(outcome.out)


@pytest.fixture(scope="module")
def exported(said, resumed) -> Path:
    """The run's last save as a model folder."""
    written = said("export", "out", "--to", "model")
    folder = resumed[0].parent / "model"
    assert written["step"] == STEPS
    assert written["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    return folder


def test_plan_foretells_what_train_then_does(said, config, trained):
    plan, summary = said("plan", config.name), trained[1]
    assert plan["parameters"]["trained"] == summary["parameters"]["trained"]
    crossed = sum(line["bytes"]["d2h"] for line in read_lines(trained[0])[1:])
    assert 0 < crossed <= (STEPS - 1) * plan["bytes_per_step"]["d2h"]
    assert summary["native_ratio"] > 0


def test_resume_goes_on_where_train_ended(trained, resumed):
    folder, summary = resumed
    assert summary["steps"] == STEPS
    assert [line["step"] for line in read_lines(folder)] == list(range(STEPS + 1))
    assert summary["final_loss"] == read_lines(folder)[-1]["loss"]


def test_export_evaluates_to_the_loss_of_the_run_and_of_transformers(said, resumed, exported):
    from sluiceway.text.pydoc_text import pydoc_text

    of_the_run = said("eval", "out")
    options = ["--data", "pydoc", "--sequence-length", 32, "--sequences", 4]
    of_the_export = said("eval", "model", *options)
    assert of_the_run["loss"] == resumed[1]["final_eval_loss"]
    assert of_the_run["tokens"] == of_the_export["tokens"] == 4 * 31
    # Batches of two, of four and of one: equal but for the order of sums.
    expected = transformers_loss(exported, pydoc_text("eval"), 32, 4)
    assert of_the_export["loss"] == pytest.approx(of_the_run["loss"], abs=1e-6)
    assert of_the_export["loss"] == pytest.approx(expected, abs=1e-6)


def test_report_of_the_run_opens_in_a_browser(said, resumed, tmp_path):
    written = said("report", "out")
    page = Page(resumed[0].parent / written["report"])
    assert list(page.runs) == ["out", "out/native"]
    d2h = page.runs["out"]["curves"]["d2h"]["value"]
    assert d2h == [line["bytes"]["d2h"] for line in read_lines(resumed[0])[1:]]
    assert sum(d2h) > 0
    picture = tmp_path / "page.png"
    assert console_of(resumed[0] / "report.html", picture) == []
    assert picture.stat().st_size > 10_000


def test_doctor_measures_this_machine(said):
    found = said("doctor")
    assert found["ok"] is True
    assert {"torch", "cores", "disk write", "link"} <= {f["name"] for f in found["findings"]}


def test_bench_without_a_name_measures_every_roof(said):
    found = said("bench")
    assert found.keys() == {"link", "disk", "kernels"}
    assert all(row["gbps"] > 0 for row in found["kernels"]["rows"])


def test_bench_step_measures_the_default_engine_against_plain_adamw(said, config):
    found = said("bench", "step", "--config", config.name, "--steps", 3)["step"]
    assert [row["engine"] for row in found["rows"]] == ["native", "subspace"]
    assert math.isfinite(found["rows"][1]["native_ratio"])


# ---- The same for a person ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "run.yaml"], ["device", "d2h"]),
        (["resume", "out"], ["out: ", f"{STEPS} steps, loss ", "x native per step"]),
        (["export", "out", "--to", "person"], [f"person: weights of step {STEPS}, ", "MiB"]),
        (["bench", "kernels"], ["copy", "adam_step", "torch AdamW"]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else None,
)
def test_tables_for_a_person_say_the_same(sluiceway, resumed, arguments, words):
    outcome = sluiceway(*arguments, cwd=resumed[0].parent)
    assert outcome.code == 0, outcome.err
    complete = "sluiceway: out: is complete; --set train.steps or train.epochs makes it go on\n"
    assert outcome.err == (complete if arguments[0] == "resume" else "")
    for word in words:
        assert word in outcome.out, outcome.out


def test_installed_script_is_the_same_command_line(python_m_sluiceway):
    script = Path(sys.executable).with_name("sluiceway")
    shown = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout == python_m_sluiceway("--help").out
    commands = ("train", "resume", "plan", "eval", "export", "report", "doctor", "bench")
    assert all(f"\n  {name} " in shown.stdout for name in commands)
    wrong = subprocess.run([script, "evaluate"], capture_output=True, text=True, check=False)
    outcome = Outcome(wrong.returncode, wrong.stdout, wrong.stderr)
    assert_short_error(outcome, 2, "No such command 'evaluate'")
