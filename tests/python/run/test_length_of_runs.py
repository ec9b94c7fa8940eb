"""Epochs, early stopping, the best model, and names that transformers.TrainingArguments have."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import yaml
from conftest import assert_short_error, read_lines
from sluiceway.config.file import load_config
from transformers import AutoModelForCausalLM

RISING = {  # Steps so large that the held-out loss rises after the first ones.
    "steps": 40, "lr": 0.08, "eval_every": 2, "schedule": "constant", "early_stopping_patience": 3,
}  # fmt: skip


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def loss_of_best(sluiceway, run, config):
    """Measure the best model on the run's own held-out sequences."""
    text = yaml.safe_load(config.read_text())["data"]["eval"][0]
    same = ("--data", text, "--sequence-length", 32, "--sequences", 4, "--json")
    again = sluiceway("eval", run / "best", *same)
    assert again.code == 0, again.err
    return json.loads(again.out)["loss"]


# ---- Epochs ----


def test_epochs_are_passes_over_the_data(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(
        tiny_model, data={"eval": []}, train={"micro_batch": 3, "accumulate": 2, "epochs": 1.5}
    )
    tree = yaml.safe_load(config.read_text())
    del tree["train"]["steps"]
    config.write_text(yaml.safe_dump(tree))
    planned = sluiceway("train", config, "--dry-run", "--json")
    assert planned.code == 0, planned.err

    done = sluiceway("train", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    found = summary_of(tmp_path / "run")
    sequences = found["data"]["train_sequences"]
    steps = math.ceil(1.5 * sequences / 6)
    assert found["steps"] == steps == read_lines(tmp_path / "run")[-1]["step"]
    assert f"{steps} steps of 6 sequences: 1.5" in done.out
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["train"]
    assert (kept["steps"], kept["epochs"]) == (steps, None)

    more = sluiceway("resume", tmp_path / "run", "--set", "train.epochs=2")
    assert more.code == 0, more.err
    assert summary_of(tmp_path / "run")["steps"] == math.ceil(2 * sequences / 6)
    assert "train.epochs was None, is now 2" in more.err
    assert "train.steps was" not in more.err


def test_plan_of_epochs_needs_neither_tokenizer_nor_weights(
    sluiceway, tiny_model, write_config, tmp_path
):
    (tmp_path / "shape").mkdir()
    shutil.copyfile(tiny_model / "config.json", tmp_path / "shape" / "config.json")
    config = write_config(tmp_path / "shape")
    epochs = sluiceway("plan", config, "--set", "train.epochs=2", "--json")
    assert epochs.code == 0, epochs.err
    assert "train would be refused here: model.path" in epochs.err
    assert "planned with" in epochs.err
    steps = sluiceway("plan", config, "--json")
    assert steps.code == 0, steps.err
    found, expected = json.loads(epochs.out), json.loads(steps.out)
    assert found["peak_bytes"]["device"] == expected["peak_bytes"]["device"]


def test_of_steps_and_epochs_the_one_that_is_said_last_holds(tiny_model, write_config):
    config = write_config(tiny_model, train={"steps": 9})
    both = load_config(config, ["train.epochs=2"]).train
    assert (both.epochs, both.steps) == (2, 200)
    assert load_config(config, ["train.epochs=2", "train.steps=7"]).train.epochs is None
    assert load_config(config, ["train.epochs=2", "train.steps=7"]).train.steps == 7


def test_a_file_with_steps_and_epochs_is_refused(sluiceway, tiny_model, write_config):
    refused = sluiceway("plan", write_config(tiny_model, train={"steps": 9, "epochs": 1}))
    assert_short_error(refused, 2, "train has epochs and steps, expected one of them")


def test_a_warmup_longer_than_the_epochs_is_refused(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model)
    settings = ("--set", "train.epochs=1", "--set", "train.warmup_steps=5000")
    refused = sluiceway("train", config, "--out", tmp_path / "run", *settings)
    assert_short_error(refused, 2, "train.warmup_steps is 5000", "train.epochs: 1 of")
    assert not (tmp_path / "run").exists()


# ---- The names of TrainingArguments ----


def test_names_of_training_arguments_are_read(tiny_model, write_config):
    tree = yaml.safe_load(write_config(tiny_model).read_text())
    tree["train"] = {
        "num_train_epochs": 3, "per_device_train_batch_size": 5, "gradient_accumulation_steps": 7,
        "learning_rate": 3e-4, "lr_scheduler_type": "polynomial",
        "lr_scheduler_kwargs": {"power": 2}, "warmup_steps": 0.1, "max_grad_norm": 0.5,
        "adam_epsilon": 1e-7, "eval_steps": 11, "save_steps": 13, "load_best_model_at_end": True,
        "report_to": "none",
    }  # fmt: skip
    path = write_config(tiny_model, "theirs.yaml")
    path.write_text(yaml.safe_dump(tree))
    train = load_config(path, ["train.learning_rate=5e-4"]).train
    assert (train.epochs, train.micro_batch, train.accumulate) == (3, 5, 7)
    assert (train.lr, train.schedule, train.schedule_options) == (5e-4, "polynomial", {"power": 2})
    assert (train.max_norm, train.eps, train.eval_every, train.save_every) == (0.5, 1e-7, 11, 13)
    assert train.keep_best
    assert train.report_to == []
    assert load_config(path, ["train.max_steps=4"]).train.steps == 4
    assert load_config(path, ["train.warmup_ratio=0.25"]).train.warmup_steps == 0.25


def test_two_names_of_one_key_are_refused(sluiceway, tiny_model, write_config):
    config = write_config(tiny_model, train={"learning_rate": 1e-3})
    refused = sluiceway("plan", config)
    assert_short_error(refused, 2, "train.learning_rate is another name of train.lr, which line")


# ---- Early stopping and the best model ----


@pytest.mark.parametrize("key", ["early_stopping_patience", "keep_best"])
def test_what_needs_a_held_out_loss_is_refused_without(sluiceway, tiny_model, write_config, key):
    config = write_config(tiny_model, data={"eval": []}, train={"eval_every": 2, key: True})
    if key == "early_stopping_patience":
        config = write_config(tiny_model, train={key: 2})
    refused = sluiceway("plan", config)
    assert_short_error(refused, 2, f"train.{key} needs a held-out loss: set train.eval_every")


def test_a_run_stops_early_and_keeps_its_best_model(sluiceway, tiny_model, write_config, tmp_path):
    run = tmp_path / "run"
    config = write_config(tiny_model, train={**RISING, "keep_best": True})
    done = sluiceway("train", config, "--out", run)
    assert done.code == 0, done.err
    losses = {line["step"]: line["eval_loss"] for line in read_lines(run) if "eval_loss" in line}
    best = min(losses, key=losses.get)
    found = summary_of(run)
    assert 0 < best < found["steps"] == best + 3 * 2 < 40
    assert (found["best_step"], found["best_eval_loss"]) == (best, losses[best])
    assert found["stopped_early"]
    assert found["status"] == "done"
    assert "stopped early" in done.out

    AutoModelForCausalLM.from_pretrained(run / "best")
    assert loss_of_best(sluiceway, run, config) == pytest.approx(losses[best], abs=1e-6)
    assert f"{losses[best]:.4f} after" in (run / "best" / "README.md").read_text()

    last = sluiceway("export", run, "--to", tmp_path / "last")
    assert last.code == 0, last.err
    assert f"{run / 'best'} has the model of step {best}, whose held-out loss of" in last.err

    over = sluiceway("resume", run)
    assert over.code == 0, over.err
    assert summary_of(run)["steps"] == found["steps"]
    settings = ("--set", "train.early_stopping_patience=null", "--set", f"train.steps={best + 9}")
    more = sluiceway("resume", run, *settings)
    assert more.code == 0, more.err
    assert summary_of(run)["steps"] == best + 9
    assert not summary_of(run)["stopped_early"]


def test_the_count_of_evaluations_goes_on_in_the_next_sitting(
    sluiceway, tiny_model, write_config, tmp_path
):
    whole = write_config(tiny_model, train=RISING)
    assert sluiceway("train", whole, "--out", tmp_path / "whole").code == 0
    steps = summary_of(tmp_path / "whole")["steps"]
    first = ("--set", f"train.steps={steps - 3}")
    assert sluiceway("train", whole, "--out", tmp_path / "parts", *first).code == 0
    rest = sluiceway("resume", tmp_path / "parts", "--set", "train.steps=40")
    assert rest.code == 0, rest.err
    # The first sitting ended with an evaluation that the whole run did not make.
    assert summary_of(tmp_path / "parts")["steps"] in (steps - 2, steps)
    assert summary_of(tmp_path / "parts")["stopped_early"]


def test_no_best_model_is_kept_if_training_lowers_no_loss(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, train={"keep_best": True, "eval_every": 1, "steps": 3, "lr": 50.0}
    )
    done = sluiceway("train", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert not (tmp_path / "run" / "best").exists()
    assert summary_of(tmp_path / "run")["best_step"] == 0


@pytest.mark.parametrize(
    "engine",
    [
        {"kind": "subspace"},
        {"kind": "offload", "tier": "disk"},
        {"kind": "offload", "tier": "host", "weights": "streamed"},
        {"kind": "zo", "tier": "host"},
        {"kind": "zo", "tier": "host", "mode": "write_back"},
    ],
    ids=lambda engine: "-".join(engine.values()),
)
def test_every_engine_keeps_its_best_model(sluiceway, small_model, write_config, tmp_path, engine):
    run = tmp_path / "run"
    train = {"keep_best": True, "eval_every": 1, "save_every": 2, "steps": 5}
    train |= {"lr": 1e-4, "steps": 12, "seed": 3} if engine["kind"] == "zo" else {"lr": 1e-3}
    store = {"chunk": "64KiB"} if engine["kind"] == "offload" else {}
    config = write_config(small_model, engine=engine, train=train, store=store)
    assert (done := sluiceway("train", config, "--out", run)).code == 0, done.err
    found = summary_of(run)
    losses = {line["step"]: line["eval_loss"] for line in read_lines(run)}
    assert found["best_step"] == min(losses, key=losses.get) > 0
    assert loss_of_best(sluiceway, run, config) == pytest.approx(
        losses[found["best_step"]], abs=2e-5
    )


def test_a_run_that_is_complete_says_so_and_keeps_its_config(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model, train={"steps": 2})
    assert sluiceway("train", config, "--out", tmp_path / "run").code == 0
    before = (tmp_path / "run" / "config.yaml").read_text()
    again = sluiceway("resume", tmp_path / "run", "--set", "train.lr=1e-3")
    assert again.code == 0, again.err
    assert "is complete; --set train.steps or train.epochs makes it go on" in again.err
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    longer = sluiceway("resume", tmp_path / "run", "--set", "train.steps=3")
    assert longer.code == 0, longer.err
    assert "is complete" not in longer.err
    assert (tmp_path / "run" / "config.yaml").read_text() != before


def test_the_last_line_says_where_the_best_model_is_or_that_there_is_none(
    sluiceway, tiny_model, write_config, tmp_path
):
    for lr, words in ((1e-2, f"in {tmp_path / 'good' / 'best'}"), (10.0, "there is no best model")):
        train = {"steps": 2, "lr": lr, "eval_every": 1, "keep_best": True, "max_norm": None}
        name = "good" if lr < 1 else "bad"
        done = sluiceway("train", write_config(tiny_model, train=train), "--out", tmp_path / name)
        assert done.code == 0, done.err
        assert words in done.out.splitlines()[-1]
        assert (tmp_path / name / "best").exists() == (name == "good")
