"""experiments/zo/streaming.py and slots_175b.py in small: what their tables rest on."""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import warnings
from math import comb

import pytest
import torch

from experiments.zo import slots_175b, streaming
from experiments.zo.streaming_table import PENDING, PREFETCH, ROUND, SAVING, median_interval, tables


def test_every_way_crosses_what_it_streams_and_no_more_is_ahead_than_slots_take(capsys):
    args = streaming.parsed(["--once"])
    args.rounds = args.steps = 1
    cores = os.sched_getaffinity(0)
    result = streaming.measure(args)
    assert os.sched_getaffinity(0) == cores
    rows = {
        kind: [row for row in result["rows"] if row["kind"] == kind]
        for kind in (ROUND, PENDING, PREFETCH)
    }
    assert [(row["mode"], row["ratio"]) for row in rows[ROUND]] == [
        (None, None), ("log", None), ("log", 0.5), ("log", 2.0),
    ]  # fmt: skip
    width, ffn, layers = 256, 704, 4
    block = 2 * width * width + 2 * width * (width // 2) + 3 * width * ffn
    streamed = 2 * layers * block
    slots = 2 * 2 * width * ffn  # Of the layers that are on their way.
    assert result["crossing_bytes"]["log"] == pytest.approx(streamed, abs=slots)
    for row in rows[ROUND]:
        crosses = streamed if row["ratio"] else 0
        assert sum(row["h2d"]) == pytest.approx(crosses, abs=slots)
        assert row["d2h"] == [0]
    for row in rows[PREFETCH]:
        assert all(0 <= count <= slots for count in row["ahead_bytes"])
    assert len(tables(result).splitlines()) == (2 + 4) + 1 + (2 + 3)
    assert len(capsys.readouterr().out.splitlines()) == len(result["rows"])


def test_steps_are_made_beside_a_save_until_it_is_written():
    case = streaming.Case("small", 64, False, 64, torch.bfloat16)
    with streaming.device_of_one_core() as cores, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That norms are bf16 is what is asked for.
        runner = streaming.Runner(case, streaming.Way("write_back", 0.0), None, cores)
        with runner.opt:
            found = runner.turn_beside_save(1)
            assert len(found["seconds"]) == runner.opt.committed_steps - 3 >= 1
    assert len(found["plain_seconds"]) == 1
    rows = [
        {"kind": SAVING, "mode": "write_back", "ratio": 0.0, "round": n, "plain_seconds": [2.0],
         "seconds": [2.0, 3.0, 5.0]} for n in range(2)
    ]  # fmt: skip
    assert tables({"rows": rows}).splitlines()[-1] == (
        "| write_back | 0 | 2.000 | 3.000 | 1.500 (1.500 to 1.500) | 3 |"
    )


def test_a_mode_names_a_wire_of_weights_that_do_not_stay():
    assert streaming.Way("write_back-fp8", 0.5).options() == {"mode": "write_back", "wire": "fp8"}
    assert streaming.Way("write_back-fp8").options() == {"mode": "write_back"}
    assert streaming.Way("log", 0.0).options() == {"mode": "log"}
    assert [streaming.Way(mode, 2.0).has_images for mode in ("log", "write_back-fp8")] == [
        False,
        True,
    ]


def test_losses_that_differ_between_ways_end_the_experiment(monkeypatch):
    losses = itertools.count()
    step = {"seconds": 1.0, "stall_seconds": 0.0, "h2d": 0, "d2h": 0}
    monkeypatch.setattr(streaming.Runner, "step", lambda self: step | {"loss": next(losses)})
    with pytest.raises(AssertionError, match="first steps have different losses"):
        streaming.measure(streaming.parsed(["--once"]))


def range_of(row: int, name: str, begins: float, ends: float, size: int) -> dict:
    return {"ph": "X", "tid": row, "name": name, "ts": begins, "dur": ends - begins,
            "args": {"bytes": size}}  # fmt: skip


def test_what_came_and_was_not_perturbed_yet_is_ahead():
    rows = [
        {"ph": "M", "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in ((1, "h2d"), (2, "perturb"))
    ]
    ranges = [
        range_of(1, "q", 0, 1, 5), range_of(2, "q", 2, 3, 0), range_of(1, "k", 3, 4, 7),
        range_of(1, "q", 4, 6, 5), range_of(2, "k", 5, 6, 0), range_of(1, "k", 7, 9, 7),
    ]  # fmt: skip
    found = streaming.ahead_in_trace({"traceEvents": rows + ranges}, [0.5, 1, 4, 5.5, 6, 8, 9])
    assert found == [0, 5, 7, 0, 5, 5, 12]


def test_the_interval_of_a_median_is_the_least_that_holds_it():
    draw = random.Random(3)
    for count in range(1, 40):
        values = draw.sample(range(1000), count)
        low, median, high = median_interval(values)
        assert median == statistics.median(values)
        left = sum(value < low for value in values)
        assert left == sum(value > high for value in values)
        outside = sum(comb(count, k) for k in range(left)) / 2**count
        within_a_tail = outside + comb(count, left) / 2**count if left else 1
        assert left == 0 or within_a_tail <= 0.05
        if count > 2 * left + 3:  # One place further in would be too short.
            assert sum(comb(count, k) for k in range(left + 2)) / 2**count > 0.05


def turn(mode, ratio, number: int, seconds: float, **more) -> dict:
    return {"kind": ROUND, "mode": mode, "ratio": ratio, "round": number, "gbps": None,
            "seconds": [seconds], "processor_seconds": [2 * seconds],
            "stall_seconds": [0.1 * seconds], "h2d": [0], "d2h": [0], **more}  # fmt: skip


def test_the_table_compares_within_a_round_with_what_bounds_a_step_there():
    rows = [turn(None, None, n, s) for n, s in enumerate((2.0, 4.0, 8.0))]
    rows += [turn("log", None, n, s) for n, s in enumerate((0.5, 2.0, 4.0))]
    link = {"gbps": 1e-9, "h2d": [1], "d2h": [0]}  # A byte a second.
    rows += [turn("log", 1.0, n, s, **link) for n, s in enumerate((1.1, 2.2, 4.8))]
    rows.append({"kind": PREFETCH, "mode": "log", "ratio": 1.0, "gbps": 1e-9,
                 "ahead_bytes": [3e6, 1e6, 2e6]})  # fmt: skip
    rows += [
        {"kind": PENDING, "mode": "log", "ratio": 1.0, "round": n, "gbps": 1e-9,
         "seconds": [1 + n, 3 + n, 5 + n], "processor_seconds": [n, n, n]} for n in range(3)
    ]  # fmt: skip
    text = tables(json.loads(json.dumps({"crossing_bytes": {"log": 1}, "rows": rows})))
    assert "| in memory | - | - | 4.000 | 8.000 | - | - | - | 10.0 % | 0.0 | 0.0 | - |" in text
    assert "| log, all resident | - | - | 2.000 | 4.000 | - | 0.500 (0.250 to 0.500) |" in text
    ratios = "1.100 (1.100 to 1.200) | 0.550 (0.550 to 0.600) | 0.550 (0.550 to 0.600)"
    assert f"| log | 1 | 0.000 | 2.200 | 4.400 | {ratios} | 10.0 % | 0.0 | 0.0 | 2.0 |" in text
    assert "| log | 1 | 2.000 | 6.000 (3) | 2000.0 | 0.0 |" in text


def test_a_small_model_from_a_drive_takes_what_is_planned_and_leaves_nothing(tmp_path):
    # A process of its own, with peaks of its own.
    command = [sys.executable, "-m", slots_175b.__name__, tmp_path, "--small"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert list(tmp_path.iterdir()) == []
    out = done.stdout
    assert "not as planned" not in out
    steps = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len({step["loss"] for step in steps}) == 3


def test_what_is_not_as_planned_is_said_and_is_the_exit_status(tmp_path, capsys):
    tiers = {"device": 50, "host": 9, "pinned": 20}
    planned = {
        "device_parts": {"slots": 30, "resident": 8, "forwards": 12}, "peak_bytes": tiers,
        "bytes_per_step": {"h2d": 100, "disk_read": 128},
    }  # fmt: skip
    row = {"loss": 6.0, "bytes": {"h2d": 100, "disk_read": 128}, "peak_bytes": tiers,
           "forwards": 12, "kernel_read": 128, "kernel_written": 4096}  # fmt: skip
    run = {"small": False, "blocks": 2, "streamed_bytes": 100, "vector_bytes": 8,
           "planned": planned, "planned_full": planned, "rows": [row, row]}  # fmt: skip
    out = tmp_path / "run.json"

    def status(**changes) -> int:
        out.write_text(json.dumps(run | changes))
        return slots_175b.main(["--table", "--out", str(out)])

    assert status() == 0
    assert "not as planned" not in capsys.readouterr().out
    assert status(rows=[row, row | {"loss": float("inf")}]) == 1
    assert status(rows=[row, row | {"kernel_written": 1 << 20}]) == 1
    assert status(rows=[row, row | {"kernel_read": 128 + 51}]) == 1
    assert status(rows=[row, row | {"peak_bytes": tiers | {"device": 51}}]) == 1
    capsys.readouterr()
    assert status(streamed_bytes=99) == 1
    assert "| over the link by the shape's formula | 99 | 100 | 100 | not as planned |" in (
        capsys.readouterr().out
    )
