"""experiments/step: turns, paced links, blocks that fit, and the sums of its table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from conftest import REPOSITORY
from sluiceway.machine.device_ops import ops_on
from sluiceway.model.targets import MIN_ELEMENTS

from experiments import harness
from experiments.step import step, step_turn
from experiments.step.block_models import Case, cases
from experiments.step.operators import operators_of
from experiments.step.step_order import (
    ABSOLUTE,
    BY_RATIO,
    NATIVE,
    PACINGS,
    WHOLE,
    in_order,
    turns_of_round,
)
from experiments.step.step_table import table
from experiments.step.step_turn import clear, failure
from experiments.step.step_ways import LINKS, MAIN_WAYS, WAYS, Pace

STEP = REPOSITORY / "experiments" / "step" / "step.py"
SMALL = Case("small", tokens=64, checkpointing=False, sequence=32, dtype=torch.bfloat16)


@dataclass
class Ended:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_step(monkeypatch, capsys):
    """step.py, in this process: `run_step(out, "--rounds", "1")`."""

    def run(out, *arguments: str) -> Ended:
        shape = ["--tokens", "64", "--sequence", "32", "--links", "unthrottled"]
        monkeypatch.setattr(
            sys, "argv", [str(STEP), "--out", str(out), "--once", *shape, *arguments]
        )
        code = step.main()
        return Ended(code, *capsys.readouterr())

    clear(torch.device("cpu"))  # What earlier tests held would lower a peak when it goes.
    return run


def test_every_way_is_measured_once_and_crosses_what_it_should(run_step, tmp_path):
    out = tmp_path / "step.json"
    held = ops_on(torch.device("cpu")).allocated_bytes()  # What other tests of the process keep.
    done = run_step(out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert {"commit", "command", "machine", "dtype"} <= set(found)
    plain = [row for row in found["rows"] if not row["checkpointing"]]
    assert [row["way"] for row in plain] == list(MAIN_WAYS)
    assert len(found["rows"]) == 2 * len(plain)
    native, full, hooks, fused = plain
    assert (native["d2h"], native["h2d"], native["host_bytes"]) == (0, 0, 0)
    with torch.device("meta"):
        model = SMALL.build(SMALL.layers)
    trained = (p.numel() for p in model.parameters() if p.requires_grad)
    compressed = sum(count for count in trained if count >= MIN_ELEMENTS)
    # In 16 bits, with a head for each weight; then a square of f of it.
    assert full["d2h"] == full["h2d"] == pytest.approx(2 * compressed, rel=0.01)
    assert hooks["d2h"] == pytest.approx(2 * compressed / 16, rel=0.01)
    assert fused["d2h"] == pytest.approx(2 * compressed / 4, rel=0.01)
    assert hooks["host_bytes"] < fused["host_bytes"] < full["host_bytes"]
    assert native["device_bytes"] - held == pytest.approx(SMALL.native_bytes(4), rel=0.05)
    again = run_step(out)
    assert again.returncode == 0, again.stderr
    assert json.loads(out.read_text())["rows"] == found["rows"]
    assert again.stdout.count("| native |") == 2


def test_a_file_of_another_commit_is_refused(run_step, tmp_path, monkeypatch):
    out = tmp_path / "step.json"
    text = json.dumps({"commit": "other", "rows": []})
    out.write_text(text)
    monkeypatch.setenv("SLUICEWAY_COMMIT", "this")
    with pytest.raises(SystemExit, match=r"step.json: is of commit other, expected this; give"):
        run_step(out)
    monkeypatch.delenv("SLUICEWAY_COMMIT")
    monkeypatch.setattr(harness, "REPOSITORY", tmp_path)  # No repository.
    with pytest.raises(SystemExit, match=r"has no known commit, .*set SLUICEWAY_COMMIT"):
        run_step(out)
    assert out.read_text() == text


def test_a_file_of_other_options_is_refused_and_a_budget_that_is_not_said_is_its(
    run_step, tmp_path, monkeypatch
):
    out, native = tmp_path / "step.json", ["--ways", NATIVE, "--budget", "512MiB"]
    assert run_step(out, *native).returncode == 0
    text = out.read_text()
    for name, found, other in (
        ("dtype", "bf16", "fp32"), ("budget", 512 << 20, 1 << 30), ("sequence", 32, 64)
    ):  # fmt: skip
        said = f"step.json: is of --{name} {found}, expected {other}; give another file"
        with pytest.raises(SystemExit, match=said):
            run_step(out, *native, f"--{name}", str(other))
    assert out.read_text() == text
    monkeypatch.setitem(step.ON_HOST, "budget", None)  # As on a card, which has its own.
    assert run_step(out, "--ways", NATIVE, "Sluiceway, fused").returncode == 0
    found = json.loads(out.read_text())
    assert (found["budget"], len(found["rows"])) == (512 << 20, 4)


def test_rows_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "rows.json"
    monkeypatch.setenv("SLUICEWAY_COMMIT", "this")
    harness.write_rows(out, [{"a": 1}])
    before = out.read_text()
    assert json.loads(before)["commit"] == "this"

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(out), "replace", full)
    with pytest.raises(OSError, match="No space left"):
        harness.write_rows(out, [{"a": 1}, {"a": 2}])
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert out.read_text() == before


def test_documents_kept_as_lines_come_back_under_their_names(tmp_path, monkeypatch):
    kept, names = tmp_path / "results.jsonl", ("one", "two")
    for name in names:
        harness.write_rows(tmp_path / f"{name}.json", [{"a": name}, {"b": [1, 2]}], more=3)
    paths = [tmp_path / f"{name}.json" for name in names]
    monkeypatch.setattr(sys, "argv", ["harness.py", *map(str, (kept, *paths))])
    harness.main()
    found = harness.read_documents(kept)
    for name, path in zip(names, paths, strict=True):
        assert found[name] == {"name": name, **harness.read_documents(path)[name]}
        assert found[name]["rows"] == harness.read_rows(path) == [{"a": name}, {"b": [1, 2]}]


def test_native_is_first_of_all_and_each_round_begins_with_another_way():
    one, two = (turns_of_round(n, list(WAYS), list(LINKS), list(PACINGS)) for n in (0, 1))
    assert (one[0].way, one[0].link) == (NATIVE, None)
    assert (two[0].way, two[0].link) == (one[1].way, one[1].link)
    keys = [{(turn.way, turn.link, turn.pacing) for turn in of_round} for of_round in (one, two)]
    paced = len(LINKS) - 1
    assert len(keys[0]) == len(one) == 1 + (len(WAYS) - 1) * (1 + paced * len(PACINGS))
    assert keys[0] == keys[1]


def test_what_is_asked_comes_first_and_each_round_of_it_before_the_rest():
    every = cases(["1b", "7b", "3b"], [1024, 2048, 8192], 1024, torch.bfloat16)
    order = in_order(every, 2, list(MAIN_WAYS), list(LINKS), list(PACINGS))
    assert len(order) == len(set(order)) == 2 * 18 * (1 + 3 * 7)
    asked = [one for one in order if one[0].shape != "1b" and one[0].tokens > 1024 and (
        one[1].way == NATIVE or one[1].link in ("PCIe 4.0 x16", "unthrottled"))
        and (one[1].way != WHOLE or (one[0].tokens == 2048 and one[1].pacing == ABSOLUTE))
    ]  # fmt: skip
    assert order[: len(asked)] == asked
    assert [turn.number for _, turn in asked] == sorted(turn.number for _, turn in asked)
    dozen = asked[: 2 * (1 + 3 + 2)]
    assert {(case.tokens, case.checkpointing) for case, _ in dozen} == {(2048, False)}
    assert {turn.way for _, turn in dozen} == set(MAIN_WAYS)
    assert {turn.link for _, turn in dozen} == {None, "PCIe 4.0 x16", "unthrottled"}
    assert {turn.pacing for _, turn in dozen} == {None, ABSOLUTE}
    assert asked[len(dozen)][0].tokens == 8192
    for case, turn in order:
        if turn.number == 0 and turn.pacing == BY_RATIO:
            native = next(i for i, (c, t) in enumerate(order) if c == case and t.way == NATIVE)
            assert native < order.index((case, turn))


def test_links_are_paced_as_named_or_by_what_the_device_computes():
    named = [Pace(1e15, 1.0).gbps(link, ABSOLUTE) for link in LINKS]
    assert named == [None, 6, 12, 24]
    twice = Pace(2 * 14.6e12, float("inf"))
    assert twice.gbps("PCIe 3.0 x8", BY_RATIO) == pytest.approx(12)
    assert twice.gbps("PCIe 4.0 x16", BY_RATIO) == pytest.approx(24 * 2 * 14.6 / 82.6)
    assert twice.gbps("unthrottled", BY_RATIO) is None
    assert twice.gbps(None, None) is None
    assert Pace(2 * 14.6e12, 20.0).gbps("PCIe 4.0 x8", BY_RATIO) == 20


def test_both_pacings_are_rows_of_one_file_and_time_that_is_over_leaves_the_rest(
    run_step, tmp_path
):
    out = tmp_path / "step.json"
    choice = ["--ways", NATIVE, "Sluiceway, fused", "--pacing", *PACINGS]
    choice += ["--links", "PCIe 4.0 x16", "unthrottled"]
    assert run_step(out, *choice, "--seconds", "0").returncode == 0
    found = json.loads(out.read_text())
    assert (found["rows"], found["left"]) == ([], 8)
    done = run_step(out, *choice)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["left"] == 0
    plain = [row for row in found["rows"] if not row["checkpointing"]]
    assert [(row["link"], row["pacing"]) for row in plain] == [
        (None, None), ("PCIe 4.0 x16", ABSOLUTE), ("PCIe 4.0 x16", BY_RATIO), ("unthrottled", None)
    ]  # fmt: skip
    native, named, scaled, free = plain
    assert named["gbps"] == 24
    rate = native["flops"] / native["seconds"]
    assert scaled["gbps"] == pytest.approx(24 * rate / 82.6e12)
    assert (native["gbps"], free["gbps"]) == (None, None)


def test_turns_may_each_have_a_process_which_says_that_others_are_left(run_step, tmp_path):
    out = tmp_path / "step.json"
    choice = ["--ways", NATIVE, "--turns", "1"]
    for left, status in ((1, 3), (0, 0)):
        assert run_step(out, *choice).returncode == status
        assert json.loads(out.read_text())["left"] == left
    assert len(json.loads(out.read_text())["rows"]) == 2
    assert run_step(out, *choice, "--rounds", "2", "--seconds", "0").returncode == 0


def test_a_turn_that_fails_is_a_row_with_its_reason_and_the_others_go_on(
    run_step, tmp_path, monkeypatch
):
    out, ways = tmp_path / "step.json", ["--ways", NATIVE, "Sluiceway, fused", "Sluiceway, hooks"]
    made = step_turn.make_optimizer

    def make_optimizer(model, options, *more):
        if options and options.get("fused"):
            raise MemoryError("no room for it\nand a second line")
        return made(model, options, *more)

    with monkeypatch.context() as broken:
        broken.setattr(step_turn, "make_optimizer", make_optimizer)
        done = run_step(out, *ways)
    assert done.returncode == 1
    assert "Sluiceway, fused: failed in every try" in done.stderr
    rows = json.loads(out.read_text())["rows"]
    failed = [row["failed"] for row in rows if "failed" in row]
    assert failed == 2 * ["MemoryError: no room for it"]
    assert len(rows) == 6
    assert "- Sluiceway, fused over unthrottled, round 0, failed: MemoryError" in done.stdout
    assert run_step(out, *ways).returncode == 1, "what failed is not tried again"
    assert run_step(out, *ways, "--retry").returncode == 0
    assert not any("failed" in row for row in json.loads(out.read_text())["rows"])


def test_a_device_that_answers_no_more_ends_the_process_behind_the_row(
    run_step, tmp_path, monkeypatch
):
    def end(status):
        raise SystemExit(status)

    monkeypatch.setattr(step, "clear", lambda device: False)
    monkeypatch.setattr(step.os, "_exit", end)
    with pytest.raises(SystemExit, match="3"):
        run_step(tmp_path / "step.json")
    found = json.loads((tmp_path / "step.json").read_text())
    assert [row["way"] for row in found["rows"]] == [NATIVE]
    assert found["left"] == 7


HANGS = """
import sys, time
from experiments.step import step
sys.argv = ["step.py", *sys.argv[1:]]
step.measure = lambda *_: time.sleep(60)
step.main()
"""


def test_a_turn_that_does_not_end_ends_its_process_and_the_next_one_goes_on_behind_it(
    run_step, tmp_path
):
    out = tmp_path / "step.json"
    shape = ["--once", "--tokens", "64", "--sequence", "32", "--links", "unthrottled"]
    done = subprocess.run(
        [sys.executable, "-c", HANGS, "--out", str(out), *shape, "--turn-limit", "3"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGALRM, done.stderr
    assert "most recent call first" in done.stderr
    row = {"round": 0, "way": NATIVE, "link": None, "pacing": None, "failed": "did not end"}
    found = json.loads(out.read_text())
    assert found["rows"] == [{"shape": "small", "tokens": 64, "checkpointing": False, **row}]
    assert found["left"] == 7
    assert run_step(out, "--ways", NATIVE).returncode == 0
    assert [row["checkpointing"] for row in json.loads(out.read_text())["rows"]] == [False, True]


def test_an_error_without_a_text_has_its_name():
    def run():
        raise ValueError

    assert failure(run) == {"failed": "ValueError: "}


def test_as_many_blocks_as_native_adamw_fits_with():
    one, two, three = (SMALL.native_bytes(blocks) for blocks in (1, 2, 3))
    assert two - one == pytest.approx(three - two, rel=0.01)
    assert [SMALL.blocks_within(b) for b in (one - 1, one, two - 1, two)] == [0, 1, 1, 2]
    assert SMALL.blocks_within(100 * three) == SMALL.layers == 4


def row(number: int, way: str, seconds: float, **more) -> dict:
    return {
        "shape": "1b", "tokens": 2048, "checkpointing": True, "round": number, "way": way,
        "link": None, "pacing": None, "gbps": None, "seconds": seconds, "blocks": 4, "layers": 16,
        "stall_share": 0.0, "device_bytes": 0, "driver_bytes": None, "host_bytes": 0,
        "d2h": 0, "h2d": 0, **more,
    }  # fmt: skip


def test_the_table_scales_to_all_layers_and_compares_within_a_round():
    link = {"link": "PCIe 4.0 x8", "pacing": BY_RATIO, "gbps": 12.0, "d2h": 1 << 20,
            "stall_share": 0.02, "driver_bytes": 3 << 30}  # fmt: skip
    rows = [row(n, "native", s) for n, s in enumerate((0.1, 0.2, 0.4))]
    rows += [row(n, "Sluiceway, fused", s, **link) for n, s in enumerate((0.05, 0.16, 0.36))]
    rows.append(row(9, "Sluiceway, hooks", 0.3, link="unthrottled"))
    lost = {"failed": "OutOfMemory: 3 GiB"}
    broken = {key: value for key, value in row(0, "Sluiceway, hooks", 1.0, **link).items()
              if key not in ("seconds", "blocks")}  # fmt: skip
    machine = {"processor": "P", "cores": 2, "gpu": "G"}
    about = {"device": "cuda:0", "machine": machine, "dtype": "bf16", "scaled": ""}
    text = table({**about, "rows": [broken | lost, *rows]})
    assert text.startswith("cuda:0: G beside P, 2 cores, bf16")
    assert "**1b, 2,048 tokens a step, checkpointing**: 4 of 16 blocks" in text
    assert "| native | - | - | 800.0 | 1.000 (1.000 to 1.000) | 0.0 % |" in text
    ours = "| Sluiceway, fused | PCIe 4.0 x8 by ratio | 12 | 640.0 | 0.800 (0.500 to 0.900) |"
    assert ours + " 2.0 % | 0 B | 3 GiB | 0 B | 1 MiB | 0 B |" in text
    assert "| Sluiceway, hooks | unthrottled | - | 1200.0 | - | 0.0 % | 0 B | - |" in text
    assert "- Sluiceway, hooks over PCIe 4.0 x8 by ratio, round 0, failed: OutOfMemory" in text


def test_a_step_is_told_by_operator_and_by_range():
    found = {way: operators_of(SMALL, way, None, steps=1) for way in (NATIVE, "Sluiceway, fused")}
    for way in found.values():
        assert way["operators"]["aten::mm"] > 0
    assert found[NATIVE]["ranges"] == {}
    assert "backward" in found["Sluiceway, fused"]["ranges"]
