"""experiments/laptop/memory.py: whole models within a budget, by the driver's count."""

from __future__ import annotations

import json
import sys
import time
import types

import pytest
import torch

from experiments.laptop import memory
from experiments.step.driver_count import TakenPeak

FITS = {"fits": True, "driver_bytes": 5, "context_bytes": 1, "torch_bytes": None, "host_bytes": 0,
        "seconds": 1.0, "losses": [3.0, 2.0]}  # fmt: skip


def run_memory(monkeypatch, out, *arguments: str) -> int:
    monkeypatch.setattr(
        sys, "argv", ["memory.py", "--device", "host", "--out", str(out), *arguments]
    )
    return memory.main()


def test_a_small_shape_trains_on_the_host_within_what_the_kernel_counts(monkeypatch, tmp_path):
    out = tmp_path / "memory.json"
    small = ["--models", "small=2GiB", "--tokens", "32", "--steps", "2"]
    assert run_memory(monkeypatch, out, *small, "--ways", "fused, f = 1/4") == 0
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert (row["counted"], row["fits"], found["left"]) == ("all", True, 0)
    assert row["parameters"] > 2 * 256 * 32_000  # Embedding and head are whole.
    assert row["context_bytes"] < row["driver_bytes"] < row["budget"] == 2 << 30
    assert 2 * row["parameters"] < row["device_bytes"] < row["driver_bytes"]
    assert len(row["losses"]) == 2
    assert max(row["losses"]) < 12


def test_what_is_above_the_budget_is_refused_and_tried_with_the_context_beside_it(
    monkeypatch, tmp_path, capsys
):
    out, asked = tmp_path / "memory.json", []

    def run(key, args):
        asked.append((key["model"], key["way"], key["counted"]))
        if key["counted"] == memory.ALL and key["model"] == "7b":
            return {"failed": "OutOfMemoryError: 3 GiB"}
        return dict(FITS)

    monkeypatch.setattr(memory, "in_a_process", run)
    ways = ["--ways", "hooks, f = 1/4", "fused, f = 1/4"]
    assert run_memory(monkeypatch, out, *ways) == 0, "too small a budget is a finding"
    one, two = "hooks, f = 1/4", "fused, f = 1/4"
    assert asked == [
        ("1.3b", one, memory.ALL), ("7b", one, memory.ALL), ("7b", one, memory.BESIDE),
        ("1.3b", two, memory.ALL), ("7b", two, memory.ALL), ("7b", two, memory.BESIDE),
    ]  # fmt: skip
    budgets = {row["model"]: row["budget"] for row in json.loads(out.read_text())["rows"]}
    assert budgets == {"1.3b": 4 * 10**9, "7b": 24 * 10**9}
    told = capsys.readouterr().out
    assert "| 7b | fused, f = 1/4 | 22.4 GiB | all |" in told
    assert "| no: OutOfMemoryError: 3 GiB |" in told
    asked.clear()
    assert run_memory(monkeypatch, out, *ways) == 0
    assert asked == []
    assert run_memory(monkeypatch, out, "--ways", "hooks, f = 1/8", "--seconds", "-1") == 0
    assert (asked, json.loads(out.read_text())["left"]) == ([], 2)


def test_a_run_that_fails_of_anything_else_is_a_row_and_a_failure(monkeypatch, tmp_path):
    out = tmp_path / "memory.json"
    monkeypatch.setattr(memory, "in_this_process", None)
    small = ["--models", "small=64KiB", "--tokens", "32", "--ways", "hooks, f = 1/4"]
    assert run_memory(monkeypatch, out, *small, "--run-limit", "0.1") == 1
    rows = json.loads(out.read_text())["rows"]
    assert [row["failed"] for row in rows] == 2 * ["did not end within 0.1 s"]


def test_what_failed_is_run_again_where_that_is_asked_and_a_finding_is_not(monkeypatch, tmp_path):
    out, asked, answers = tmp_path / "memory.json", [], {}
    one, two = "hooks, f = 1/4", "fused, f = 1/4"

    def run(key, args):
        asked.append((key["way"], key["counted"]))
        last = json.loads(out.read_text())["rows"][-1]
        assert last == {**key, "failed": "did not end"}  # Should this be the last it does.
        return dict(answers[asked[-1]])

    monkeypatch.setattr(memory, "in_a_process", run)
    late, small = {"failed": "did not end within 9 s"}, {"failed": "OutOfMemoryError: 3 GiB"}
    answers = {(one, memory.ALL): late, (one, memory.BESIDE): FITS,
               (two, memory.ALL): small, (two, memory.BESIDE): small}  # fmt: skip
    arguments = ["--models", "7b=24GB", "--ways", one, two]
    assert run_memory(monkeypatch, out, *arguments) == 1
    assert asked == list(answers)
    asked.clear()
    assert run_memory(monkeypatch, out, *arguments) == 1
    assert asked == []
    answers[one, memory.ALL] = FITS
    assert run_memory(monkeypatch, out, *arguments, "--retry") == 0
    assert asked == [(one, memory.ALL)]
    rows = json.loads(out.read_text())["rows"]
    assert [(row["way"], row["counted"]) for row in rows] == [
        (two, memory.ALL), (two, memory.BESIDE), (one, memory.ALL)
    ]  # fmt: skip


def test_a_budget_that_does_not_hold_the_model_is_out_of_memory():
    case = memory.case_of("small", 32)
    found = memory.failure(
        lambda: memory.trained(case, "hooks, f = 1/4", "host", 1, 1 << 20, memory.ALL)
    )
    assert memory.did_not_fit(found), found


@pytest.mark.parametrize(("budget", "share"), [(4000, 0.3), (2000, 0.1), (900, 0.0), (90000, 1.0)])
def test_torch_may_hold_what_the_rest_of_the_drivers_count_leaves(monkeypatch, budget, share):
    said = []
    card = types.SimpleNamespace(total_memory=10_000)
    monkeypatch.setattr(memory, "taken_bytes", lambda device: 3000)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, device: said.append(part)
    )
    memory.cap_torch(torch.device("cuda:0"), budget)
    assert said == [pytest.approx(share)]


def test_the_driver_is_asked_by_a_thread_until_the_block_ends(monkeypatch):
    taken = [5]
    monkeypatch.setattr("experiments.step.driver_count.taken_bytes", lambda device: taken[0])
    with TakenPeak(torch.device("cpu")) as peak:
        taken[0] = 9
        while peak.bytes != 9:  # Until the thread has seen it.
            time.sleep(0.001)
        taken[0] = 6
    assert peak.look() == 9
