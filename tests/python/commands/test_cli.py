"""The command line: what a run leaves behind, how it is resumed, exported and interrupted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
import yaml
from conftest import assert_short_error, read_lines, wait_for_step


def test_run_folder_holds_what_it_promises(finished):
    folder, _ = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml", "metrics.jsonl", "summary.json", "trace.json", "checkpoint",
        "checkpoint.old", "native"
    }  # fmt: skip


def test_metrics_have_a_line_a_step_and_held_out_losses_where_they_were_due(finished):
    lines = read_lines(finished[0])
    assert [line["step"] for line in lines] == list(range(7))
    assert [line["step"] for line in lines if "eval_loss" in line] == [0, 2, 4, 6]
    assert {line["tokens"] for line in lines[1:]} == {2 * 2 * 32}


def test_summary_adds_losses_ratio_versions_machine_and_config_hash(finished):
    summary = json.loads((finished[0] / "summary.json").read_text())
    lines = read_lines(finished[0])
    native = json.loads((finished[0] / "native" / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["final_loss"] == lines[-1]["loss"]
    assert summary["final_eval_loss"] == lines[-1]["eval_loss"] < summary["first_eval_loss"]
    expected = summary["median_step_seconds"] / native["median_step_seconds"]
    assert summary["native_ratio"] == pytest.approx(expected)
    assert summary["versions"].keys() == {"sluiceway", "torch", "transformers", "python"}
    assert len(summary["config_hash"]) == 16
    assert summary["data"]["replaced_bytes"] == 0


def test_comparison_has_equal_data_and_seeds(finished):
    losses = [[line.get("loss") for line in read_lines(f)] for f in (finished[0],
              finished[0] / "native")]  # fmt: skip
    assert losses[0] == losses[1]


def test_trace_is_chrome_json_with_a_range_for_every_step(finished):
    events = json.loads((finished[0] / "trace.json").read_text())["traceEvents"]
    names = [e["name"] for e in events if e["ph"] == "X"]
    assert [f"step {k}" for k in range(1, 7)] == [n for n in names if n.startswith("step ")]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events if e["ph"] == "X")


def test_progress_is_lines_of_loss_rate_links_and_memory_when_there_is_no_terminal(finished):
    out = finished[1].out
    assert "\x1b" not in out
    last = [line for line in out.splitlines() if "step 6/6" in line][-1]
    for name in ("loss", "held-out", "tokens/s", "s/step", "d2h/h2d", "stall", "data",
                 "device/host/pinned", "ETA"):  # fmt: skip
        assert f"{name} " in last
    assert "% " in last.partition("native ")[2][:6]  # Share of native.


def test_resolved_config_trains_the_same_run_again(sluiceway, finished, tmp_path):
    folder, _ = finished
    again = sluiceway(
        "train", folder / "config.yaml", "--out", tmp_path / "again", "--set", "compare=null"
    )
    assert again.code == 0, again.err
    weights = [
        (f / "checkpoint" / "model.safetensors").read_bytes() for f in (folder, tmp_path / "again")
    ]
    assert weights[0] == weights[1]


def test_finished_run_resumed_is_done_at_once_and_unchanged(sluiceway, finished):
    folder, _ = finished
    kept = [folder / "checkpoint" / "model.safetensors", folder / "trace.json"]
    before = [path.read_bytes() for path in kept]
    outcome = sluiceway("resume", folder, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["steps"] == 6
    assert [path.read_bytes() for path in kept] == before


def test_export_is_a_folder_that_transformers_loads_with_the_trained_weights(
    sluiceway, tiny_model, finished, tmp_path
):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = finished
    outcome = sluiceway("export", folder, "--to", tmp_path / "model", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["step"] == 6
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {"optimizer.pt", "random.pt", "state.json"} & names
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    saved = load_file(folder / "checkpoint" / "model.safetensors")
    for name, tensor in saved.items():
        assert torch.equal(model.state_dict()[name], tensor)
    configs = [
        json.loads((at / "config.json").read_text()) for at in (tiny_model, tmp_path / "model")
    ]
    assert configs[0]["use_cache"] == configs[1]["use_cache"]
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("a")["input_ids"] == [97]
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for said in ("Steps: 6", "`native`", "prose.txt", "before,"):
        assert said in card
    again = sluiceway("export", folder, "--to", tmp_path / "model")
    assert_short_error(again, 2, "is not empty")


def test_resume_may_train_longer_and_says_what_was_changed(sluiceway, tiny_model, write_config,
                                                           tmp_path):  # fmt: skip
    folder = tmp_path / "out"
    config = write_config(tiny_model, train={"steps": 2})
    assert sluiceway("train", config, "--out", folder).code == 0
    outcome = sluiceway("resume", folder, "--set", "train.steps=3")
    assert outcome.code == 0
    assert "train.steps was 2, is now 3" in outcome.err
    assert [line["step"] for line in read_lines(folder)] == [0, 1, 2, 3]
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["steps"] == 3


def test_plan_of_plain_adamw_counts_weights_gradients_and_moments(
    sluiceway, tiny_model, write_config
):
    config = write_config(tiny_model)
    plans = [sluiceway("plan", config, "--json"), sluiceway("train", config, "--dry-run", "--json")]
    assert [plan.code for plan in plans] == [0, 0]
    plan, dry = (json.loads(plan.out) for plan in plans)
    processes = [each["peak_bytes"].pop("process") for each in (plan, dry)]  # Partly measured.
    assert processes[0] == pytest.approx(processes[1], rel=0.02)
    assert dry["peak_bytes"] == plan["peak_bytes"]
    assert plan["peak_bytes"]["device"] > 4 * 4 * plan["parameters"]["trained"]
    assert plan["bytes_per_step"] == {"d2h": 0, "h2d": 0}
    assert plan["seconds_per_step"] > 0


def test_dry_run_shows_what_of_the_first_sequence_is_learned(
    sluiceway, tiny_model, write_config, tmp_path
):
    records = [{"prompt": f"{number} + 1 = ", "completion": str(number + 1)} for number in (5, 6)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, records)))
    data = {"train": [str(tmp_path / "sums.jsonl")], "eval": [], "packing": False}
    config = write_config(tiny_model, data=data)
    outcome = sluiceway("train", config, "--dry-run")
    assert outcome.code == 0, outcome.err
    begin, plan = outcome.out.split("\n\n", 1)
    found, steps, *shown = begin.splitlines()
    assert found.startswith("data: 2 answers in 1 file; 2 sequences")
    assert " steps of " in steps
    assert shown[0].startswith("the first sequence, 10 tokens; lines with > are learned:")
    assert shown[1] == "    5 + 1 = "
    assert shown[2].startswith("  > 6")
    assert "device memory" in plan
    counts = json.loads(sluiceway("train", config, "--dry-run", "--json").out)["data"]
    assert (counts["train_answers"], counts["train_tokens"]) == (2, 20)

    (tmp_path / "sums.jsonl").write_text("{")
    outcome = sluiceway("train", config, "--dry-run", "--json")
    assert outcome.code == 0
    assert "train would be refused here: " in outcome.err
    assert json.loads(outcome.out)["data"] is None


def test_plan_beyond_a_budget_is_refused_with_both_counts(sluiceway, tiny_model, write_config):
    config = write_config(tiny_model, budget={"device": "100KiB"})
    outcome = sluiceway("plan", config)
    assert_short_error(outcome, 3, "budget.device: the run needs", "102400 bytes (100 KiB)")


# ---- Signals ----


def test_plan_measures_a_layer_of_the_model_where_no_rate_is_given(
    sluiceway, tiny_model, write_config
):
    measured = json.loads(sluiceway("plan", write_config(tiny_model), "--json").out)
    assert measured["assumed"]["tflops_from"].startswith("one layer")
    given = write_config(tiny_model, device={"tflops": 0.5})
    assumed = json.loads(sluiceway("plan", given, "--json").out)["assumed"]
    assert (assumed["tflops"], assumed["tflops_from"]) == (0.5, "config")


@pytest.mark.parametrize("command", ["plan", "train"])
def test_unknown_norm_mode_is_refused_by_every_command(
    sluiceway, tiny_model, write_config, command
):
    config = write_config(tiny_model, schedule={"norm": "lagged"})
    words = "schedule.norm is 'lagged', expected 'auto', 'exact' or 'speculative'"
    assert_short_error(sluiceway(command, config), 2, words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_finishes_the_step_saves_and_can_be_resumed(
    sluiceway, tiny_model, write_config, tmp_path, number
):
    config = write_config(tiny_model, train={"steps": 100_000, "schedule": "constant"})
    folder = tmp_path / "out"
    command = sluiceway.start("train", config, "--out", folder)
    wait_for_step(folder, 3)
    command.signal(number)
    assert_short_error(command.wait(), 130, f"saved; go on with: sluiceway resume {folder}")
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    reached = state["position"]["step"]
    assert reached >= 3
    assert read_lines(folder)[-1]["step"] == reached
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    outcome = sluiceway("resume", folder, "--set", f"train.steps={reached + 2}")
    assert outcome.code == 0, outcome.err
    assert [line["step"] for line in read_lines(folder)] == list(range(reached + 3))


def test_signal_during_the_comparison_does_not_speak_of_a_save(
    sluiceway, tiny_model, write_config, tmp_path
):
    train = {"steps": 100_000, "schedule": "constant"}
    config = write_config(tiny_model, train=train, compare="native")
    folder = tmp_path / "out"
    command = sluiceway.start("train", config, "--out", folder)
    wait_for_step(folder / "native", 3)
    command.signal(signal.SIGINT)
    outcome = command.wait()
    assert_short_error(outcome, 130, "interrupted; earlier saves are still there")
    assert not (folder / "checkpoint").exists()


def test_folder_that_another_process_runs_in_is_refused(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, train={"steps": 100_000})
    command = sluiceway.start("train", config, "--out", tmp_path / "out")
    wait_for_step(tmp_path / "out", 1)
    assert_short_error(sluiceway("resume", tmp_path / "out"), 2, "another process runs this run")
    command.signal(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL


def test_commands_work_without_standard_output(tiny_model, write_config, tmp_path):
    command = [sys.executable, "-m", "sluiceway", "train", write_config(tiny_model), "--out",
               tmp_path / "out"]  # fmt: skip
    shell = shlex.join(map(str, command))
    done = subprocess.run(["sh", "-c", f"{shell} >&-"], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert read_lines(tmp_path / "out")[-1]["step"] == 6


@pytest.mark.parametrize("end", ["pipe", "full"])
def test_run_outlives_whoever_reads_it(tiny_model, write_config, tmp_path, end):
    command = [sys.executable, "-m", "sluiceway", "train", str(write_config(tiny_model)), "--out",
               str(tmp_path / "out")]  # fmt: skip
    if end == "pipe":
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.read(10)
            process.stdout.close()
            said = process.stderr.read()
        reason = b"Broken pipe"
    else:
        with open("/dev/full", "wb") as full:
            process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        said, reason = process.stderr, b"No space left on device"
    assert process.returncode == 0
    assert said == b"sluiceway: standard output: " + reason + b"; the run goes on without it\n"
    assert read_lines(tmp_path / "out")[-1]["step"] == 6
    assert (tmp_path / "out" / "checkpoint").is_dir()


@pytest.mark.parametrize(("encoding", "name"), [("ascii", "l\u00e4uft"), ("latin-1", "\u6a21")])
def test_names_that_the_terminal_cannot_print_are_escaped(
    tiny_model, write_config, tmp_path, encoding, name
):
    config, out = write_config(tiny_model, train={"steps": 1}), tmp_path / name
    to = tmp_path / f"{name}2"
    for command in (["train", config, "--out", out], ["export", out, "--to", to]):
        done = subprocess.run(
            [sys.executable, "-m", "sluiceway", *map(str, command)], capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding}, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert name.encode("ascii", "backslashreplace") in done.stdout
