"""Bytes that `plan` predicts beside those that a run of the same config then reports."""

from __future__ import annotations

import json

import pytest
from conftest import REPOSITORY, assert_short_error, build_llama

QUICKSTART = {
    "model": {"autocast": "bf16"},
    "data": {"sequence_length": 256},
    "train": {"steps": 3, "micro_batch": 4, "lr": 1e-3},
}
WIDE = {
    "data": {"sequence_length": 128},
    "train": {"steps": 2, "micro_batch": 2, "lr": 1e-3},
}


@pytest.fixture
def wide_model(tmp_path):
    return build_llama(tmp_path / "wide", hidden=768, layers=3)


@pytest.fixture
def config_of(write_config, wide_model):
    def write(model, **changes):
        sections = {"engine": {"kind": "subspace"}, **(QUICKSTART if model else WIDE)}
        for section, keys in changes.items():
            sections[section] = {**sections.get(section, {}), **keys}
        path = REPOSITORY / "experiments/quickstart/model" if model else wide_model
        data = sections.pop("data") | {"eval": []}
        return write_config(path, data=data, **sections)

    return write


@pytest.mark.parametrize("quickstart", [True, False], ids=["quickstart", "wide"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"accumulate": 4}},
        {"engine": {"wire": "int8", "codec": "svd"}},
        {"schedule": {"norm": "speculative"}},
    ],
    ids=["default", "accumulate", "int8-svd", "speculative"],
)
def test_a_run_takes_the_memory_that_was_planned(
    sluiceway, config_of, tmp_path, quickstart, changes
):
    config = config_of(quickstart, **changes)
    plan = json.loads(sluiceway("plan", config, "--json").out)["peak_bytes"]
    outcome = sluiceway("train", config, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    peak = json.loads(outcome.out)["peak_bytes"]
    assert plan["host"] == peak["host"]
    assert plan["pinned"] == peak["pinned"]
    assert plan["device"] == pytest.approx(peak["device"], rel=0.05)
    assert plan["process"] == pytest.approx(peak["process"], rel=0.10)


def test_a_host_budget_of_what_was_planned_is_enough_and_a_byte_less_is_refused(
    sluiceway, config_of, tmp_path
):
    config = config_of(True)
    needed = json.loads(sluiceway("plan", config, "--json").out)["peak_bytes"]["host"]
    enough = ("--set", f"budget.host={needed}")
    assert sluiceway("plan", config, *enough).code == 0
    outcome = sluiceway("train", config, "--out", tmp_path / "out", *enough)
    assert outcome.code == 0, outcome.err
    assert_short_error(
        sluiceway("plan", config, "--set", f"budget.host={needed - 1}"), 3, "budget.host"
    )


def test_plan_prints_the_process_and_names_no_budget_for_it(sluiceway, config_of):
    (row,) = [
        line for line in sluiceway("plan", config_of(True)).out.splitlines() if "process" in line
    ]
    assert row.split()[:2] == ["process", "memory"]
    assert row.split()[-1] in ("MiB", "-")
