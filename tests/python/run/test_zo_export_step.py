"""`sluiceway export --step`: any step of a run that logs them, bit for bit, tensor by tensor."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import assert_short_error
from safetensors.torch import load_file
from sluiceway.optim.zo.optimizer import ZoSgd
from sluiceway.run.export import export

STEPS = 7


@pytest.fixture
def run_of(sluiceway, tiny_model, write_config, tmp_path: Path) -> Callable[..., Path]:
    """The folder of a run of so many steps."""

    def made(steps: int, engine: dict, dtype: str = "fp32", **train: object) -> Path:
        folder = tmp_path / f"of-{steps}"
        config = write_config(
            tiny_model, engine={"kind": "zo", "directions": 2, **engine}, model={"dtype": dtype},
            data={"eval": []}, trace=False,
            train={"lr": 1e-3, "schedule": "constant", "steps": steps, **train},
        )  # fmt: skip
        done = sluiceway("train", config, "--out", folder)
        assert done.code == 0, done.err
        return folder

    return made


def saved(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoint" / "model.safetensors")


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("engine", "dtype", "decay", "first"),
    [
        ({"tier": "host"}, "bf16", 0.5, 0),
        ({"tier": "host", "noise": "lowrank", "period": 2}, "fp32", 0.5, 0),
        ({"tier": "disk", "consolidate": 4}, "bf16", 0.5, 4),
        ({"tier": "disk", "consolidate": 4}, "fp32", 0.0, 4),
    ],
    ids=["host", "low-rank", "disk", "disk-fp32"],
)
def test_weights_of_a_step_are_those_that_the_run_had_after_it(
    sluiceway, run_of, tiny_model, tmp_path, engine, dtype, decay, first
):
    run = run_of(STEPS, engine, dtype, weight_decay=decay)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    # A base of 16 bits is rounded at random: what goes on from it is the run's, not its own step.
    for step in {5, STEPS} | ({first} if dtype == "fp32" and first else set()):
        to = tmp_path / f"step-{step}"
        done = sluiceway("export", run, "--to", to, "--step", step, "--json")
        assert done.code == 0, done.err
        assert done.err == ""
        said = json.loads(done.out)
        assert (said["step"], said["folder"]) == (step, str(to))
        expected = saved(run if step == STEPS else run_of(step, engine, dtype, weight_decay=decay))
        assert_same(load_file(to / "model.safetensors"), expected)
        names = {path.name for path in to.iterdir()} - {"README.md"}
        assert names == {p.name for p in (run / "checkpoint").iterdir()} - {
            "optimizer.pt", "random.pt", "state.json"
        }  # fmt: skip
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    if first == 0:
        done = sluiceway("export", run, "--to", tmp_path / "base", "--step", 0)
        assert done.code == 0, done.err
        base = load_file(tiny_model / "model.safetensors")
        kind = next(iter(saved(run).values())).dtype
        assert_same(load_file(tmp_path / "base" / "model.safetensors"),
                    {name: tensor.to(kind) for name, tensor in base.items()})  # fmt: skip
    for step in (first - 1, STEPS + 1):
        if step >= 0:
            done = sluiceway("export", run, "--to", tmp_path / "none", "--step", step)
            assert_short_error(
                done, 2, f"--step: is {step}, expected one of {first} to {STEPS}: the base is "
                f"of step {first} and the last save of step {STEPS}"
            )  # fmt: skip
            assert not (tmp_path / "none").exists()


def test_a_step_is_converted_as_a_save_is(sluiceway, run_of, tmp_path):
    from transformers import AutoModelForCausalLM

    run = run_of(3, {"tier": "host"})
    for name, options in (("plain", []), ("rounded", ["--dtype", "bf16"])):
        done = sluiceway("export", run, "--to", tmp_path / name, "--step", 2, *options)
        assert done.code == 0, done.err
    plain, rounded = (load_file(tmp_path / n / "model.safetensors") for n in ("plain", "rounded"))
    assert_same(rounded, {name: tensor.bfloat16() for name, tensor in plain.items()})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "rounded")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.model.norm.weight, rounded["model.norm.weight"])


def test_of_weights_on_disk_one_is_in_memory_at_a_time(run_of, tmp_path, monkeypatch):
    run = run_of(3, {"tier": "disk"})
    made: list[weakref.ref] = []
    theta = ZoSgd.theta

    def watched(opt, p):
        assert [ref for ref in made if ref() is not None] == []
        with torch._C.DisableTorchFunctionSubclass():  # Such a read raises otherwise.
            assert p.untyped_storage().nbytes() == p.element_size()  # The model itself has none.
        value = theta(opt, p)
        made.append(weakref.ref(value))
        return value

    monkeypatch.setattr(ZoSgd, "theta", watched)
    gc.disable()
    try:
        export(run, tmp_path / "model", step=2)
    finally:
        gc.enable()
    assert len(made) == len(load_file(tmp_path / "model" / "model.safetensors")) > 10


def test_a_run_that_went_on_from_its_base_has_steps_from_there(sluiceway, run_of, tmp_path):
    """The save and the later base have weights; the steps between them have none."""
    run = run_of(3, {"tier": "disk", "consolidate": 2})
    kept = tmp_path / "kept"
    shutil.copytree(run / "checkpoint", kept)
    done = sluiceway("resume", run, "--set", "train.steps=7")
    assert done.code == 0, done.err
    last = saved(run)
    for name in ("checkpoint", "checkpoint.old"):
        shutil.rmtree(run / name, ignore_errors=True)
    shutil.copytree(kept, run / "checkpoint")  # As if it had been killed before it saved again.
    done = sluiceway("export", run, "--to", tmp_path / "no", "--step", 5)
    assert_short_error(done, 2, "--step: is 5, expected 3, the step of the last save, or 6, ")
    for step in (3, 6):
        done = sluiceway("export", run, "--to", tmp_path / str(step), "--step", step)
        assert done.code == 0, done.err
    assert_same(load_file(tmp_path / "3" / "model.safetensors"), saved(run))
    differs = load_file(tmp_path / "6" / "model.safetensors")
    assert not all(torch.equal(differs[name], last[name]) for name in last)
    again = run_of(6, {"tier": "disk", "consolidate": 2})
    assert_same(differs, saved(again))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"tier": "device"}, "--step: is 2, but the run is of tier device, which keeps no weig"),
        (
            {"tier": "host", "mode": "write_back"},
            "--step: is 2, but the run is of mode write_back, whi",
        ),
    ],
)
def test_a_run_without_a_log_has_no_steps(sluiceway, run_of, tmp_path, engine, words):
    done = sluiceway("export", run_of(2, engine), "--to", tmp_path / "model", "--step", 2)
    assert_short_error(done, 2, words, "leave --step out")
    assert not (tmp_path / "model").exists()


def test_another_engine_has_no_steps(sluiceway, finished, tmp_path):
    done = sluiceway("export", finished[0], "--to", tmp_path / "model", "--step", 2)
    assert_short_error(
        done, 2, "--step: is 2, but engine.kind is native, which keeps no weights but those of its",
        "the last save is of step 6",
    )  # fmt: skip


def test_a_store_that_is_gone_is_named_and_none_is_made(sluiceway, run_of, tmp_path):
    run = run_of(3, {"tier": "disk"})
    store = run / "store"
    store.rename(tmp_path / "away")
    for make in (lambda: None, store.mkdir):
        make()
        done = sluiceway("export", run, "--to", tmp_path / "model", "--step", 2)
        assert_short_error(done, 2, f"{store} holds no weights of a run; put")
        assert not store.exists() or list(store.iterdir()) == []
    assert not (tmp_path / "model").exists()
