"""Updates during the backward: the bits of those after it, whatever becomes of the step."""

from __future__ import annotations

import json

import pytest
import sluiceway as sw
import torch
from offload_models import loss_of, offload, run, words
from small_models import same_bits
from test_offload_codec import CODEC

from experiments.kill_resume.kills import loss_lines, weights_hash

EARLY = {"policy": "speculative", "accumulate": 1}


def counts(opt):
    """Steps that were kept, made again, and made after the backward."""
    of = opt.stats()["offload"]
    return tuple(of[f"{name}_steps"] for name in ("speculative", "redone", "fallen_back"))


def trained(drive, folder=None, **arguments):
    """The model, and how its steps were made."""
    model, made = words(dtype=torch.bfloat16), []
    with offload(model, folder, **arguments) as opt:
        for step in range(6):
            drive(model, opt, step)
            made.append(counts(opt))
    return model, made


def plain(model, opt, step):
    loss_of(model, step).backward()
    opt.step()
    opt.zero_grad()


@pytest.mark.parametrize(
    "options", [{}, CODEC, {**CODEC, "spill": "core"}], ids=["", "codec", "core"]
)
@pytest.mark.parametrize("max_norm", [None, 100.0, 1.2])
def test_disk_and_memory_give_the_bits_of_updates_after_the_step(tmp_path, options, max_norm):
    options = {**options, "max_norm": max_norm}
    expected, _ = trained(plain, **options)
    for folder in (None, tmp_path / "disk"):
        model, made = trained(plain, folder, **options, **EARLY)
        assert same_bits(expected, model)
        redone = sum(one[1] for one in made)
        assert (redone > 0) == (max_norm == 1.2)
        assert sum(map(sum, made)) == 6


def test_a_core_is_kept_where_the_gradient_was():
    expected, _ = trained(plain, **CODEC)
    assert same_bits(expected, trained(plain, **CODEC, spill="core")[0])
    with pytest.raises(sw.InvalidArgument, match="spill is 'core', but codec is identity"):
        offload(words(), spill="core")


def several(model, opt, step):
    for micro in range(3):
        (loss_of(model, 3 * step + micro) / 3).backward()
    opt.step()
    opt.zero_grad()


def test_cores_of_several_backwards_are_updated_in_the_last(tmp_path):
    expected, _ = trained(several, **CODEC, accumulate=3)
    model, made = trained(several, tmp_path / "disk", **CODEC, **{**EARLY, "accumulate": 3})
    assert same_bits(expected, model)
    assert made[-1] == (1, 0, 0)


def clipped_by_torch(model, opt, step):
    loss_of(model, step).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.2)
    opt.step()
    opt.zero_grad()


def clipped_by_us(model, opt, step):
    loss_of(model, step).backward()
    opt.clip_grad_norm_(1.2)
    opt.step()
    opt.zero_grad()


def another_rate(model, opt, step):
    loss_of(model, step).backward()
    opt.param_groups[0]["lr"] *= 0.9  # Behind the backward, which began with another one.
    opt.step()
    opt.zero_grad()


def dropped(model, opt, step):
    loss_of(model, 100 + step).backward()
    opt.zero_grad()
    plain(model, opt, step)


def overflowing(model, opt, step):
    (loss_of(model, step) * (float("inf") if step == 2 else 1.0)).backward()
    opt.step()
    opt.zero_grad()


def scaled_by_torch(model, opt, step):
    if step == 0:
        scaled_by_torch.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scaled_by_torch.scaler.scale(loss_of(model, step)).backward()
    scaled_by_torch.scaler.step(opt)
    scaled_by_torch.scaler.update()
    opt.zero_grad()


def edited(model, opt, step):
    plain(model, opt, step)
    with torch.no_grad():
        model.up.weight.mul_(0.99)


def twice(model, opt, step):
    """More backwards than were promised."""
    if step == 4:
        loss_of(model, 50).backward()
    plain(model, opt, step)


@pytest.mark.parametrize(
    ("drive", "redone"),
    [
        (clipped_by_torch, True), (clipped_by_us, True), (another_rate, True), (dropped, False),
        (overflowing, False), (scaled_by_torch, True), (edited, False), (twice, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("codec", [{}, CODEC], ids=["whole", "cores"])
def test_steps_that_are_not_as_expected_are_made_again_or_dropped(tmp_path, drive, redone, codec):
    expected, _ = trained(drive, **codec)
    model, made = trained(drive, tmp_path / "disk", **codec, **EARLY)
    assert same_bits(expected, model)
    assert any(one[1] for one in made) == redone


def test_a_step_that_cannot_be_made_again_is_refused_and_training_goes_on():
    model, expected = words(), words()
    with offload(model, **EARLY, _redo=False) as opt, offload(expected) as other:
        run(model, opt, 2)
        run(expected, other, 2)
        loss_of(model, 2).backward()
        opt.param_groups[0]["lr"] *= 0.5
        with pytest.raises(sw.InvalidArgument, match=r"lr 0\.0005, expected 0\.001"):
            opt.step()
        opt.zero_grad()
        other.param_groups[0]["lr"] *= 0.5
        run(model, opt, 3, first=2)
        run(expected, other, 3, first=2)
    assert same_bits(model, expected)


@pytest.mark.parametrize(
    ("engine", "train", "host"),
    [
        ({}, {"accumulate": 1, "max_norm": None}, None),
        ({}, {"accumulate": 1, "max_norm": None}, "24KiB"),
        ({}, {"accumulate": 1, "max_norm": 1e6}, None),
        (
            {"codec": "block_random", "target": "proj", "block": 8},
            {"accumulate": 2, "max_norm": None},
            None,
        ),
        (
            {
                "codec": "block_random",
                "target": "proj",
                "block": 8,
                "policy": "spill",
                "spill": "core",
            },
            {"accumulate": 2, "max_norm": 0.5},
            None,
        ),
        ({"state_codec": "8bit"}, {"accumulate": 1, "max_norm": None}, "24KiB"),
        (
            {"state_codec": "bf16", "policy": "spill"},
            {"accumulate": 2, "max_norm": 0.5},
            None,
        ),
        (
            {"state_codec": "8bit", "policy": "spill", "tier": "host"},
            {"accumulate": 1, "max_norm": None},
            None,
        ),
    ],
    ids=[
        "parked",
        "read again",
        "kept",
        "cores",
        "cores wait",
        "8bit, read again",
        "bf16, spilled",
        "8bit in host memory",
    ],
)
def test_a_run_moves_what_its_plan_says(
    sluiceway, tiny_model, write_config, tmp_path, engine, train, host
):
    engine = {"kind": "offload", "tier": "disk", "gradients": "bf16", "policy": "speculative",
              **engine}  # fmt: skip
    config = write_config(
        tiny_model, train={"steps": 12, "micro_batch": 2, **train}, engine=engine,
        store={"chunk": "8KiB"}, budget={"host": host} if host else {},
    )  # fmt: skip
    done = sluiceway("train", config, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    lines = [json.loads(x) for x in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    plan = json.loads(sluiceway("plan", config, "--json").out)
    for tier in ("host", "pinned"):
        assert lines[-1]["peak_bytes"][tier] == plan["peak_bytes"][tier], tier
    steps = [line["bytes"] for line in lines if "seconds" in line][1:]
    for link, count in plan["bytes_per_step"].items():
        found = sum(step[link] for step in steps) / len(steps)
        # A commit's table, run state and superblock are written beside the states.
        commit = 48 << 10 if link == "disk_written" else 0
        assert 0.9 * count <= found <= 1.1 * count + commit, link


def test_a_run_that_is_taken_up_again_ends_in_the_same_bits(
    sluiceway, tiny_model, write_config, tmp_path
):
    train = {"steps": 6, "max_norm": 0.5, "save_every": 3, "schedule": "constant"}
    engine = {"kind": "offload", "tier": "disk", "gradients": "bf16"}
    config = write_config(tiny_model, train=train, engine=engine, store={"chunk": "8KiB"})
    early = ["--set", "engine.policy=speculative"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert sluiceway("train", config, "--out", whole).code == 0
    short = ["--set", "train.steps=4"]
    assert sluiceway("train", config, "--out", stopped, *early, *short).code == 0
    done = sluiceway("resume", stopped, "--set", "train.steps=6")
    assert done.code == 0, done.err
    assert weights_hash(stopped) == weights_hash(whole)
    assert loss_lines(stopped)[-2:] == loss_lines(whole)[-2:]
