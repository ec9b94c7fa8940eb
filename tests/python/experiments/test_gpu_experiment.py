"""experiments/gpu: what can be seen of it without a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from experiments.gpu import part_tables, record

RUN = REPOSITORY / "experiments" / "gpu" / "run.sh"
CLEAN = "========= ERROR SUMMARY: 0 errors"


@pytest.fixture
def no_card(tmp_path):
    """An environment whose nvidia-smi finds nothing."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tools / "nvidia-smi").chmod(0o755)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": sys.executable}


def run(environment, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(RUN), *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("part", [*record.PARTS, "all"])
def test_without_a_card_it_says_so_and_exits_with_2(part, no_card, tmp_path):
    done = run(no_card, part, str(tmp_path / "out"))
    assert done.returncode == 2
    assert "no CUDA card" in done.stderr
    assert not list((tmp_path / "out").glob("*.json"))


def test_help_names_every_part_and_a_wrong_one_is_refused(no_card, tmp_path):
    told = run(no_card, "--help")
    assert told.returncode == 0
    assert all(f"run.sh {part} OUT" in told.stdout for part in record.PARTS)
    assert "set -euo" not in told.stdout
    for wrong in (["tests", str(tmp_path)], ["smoke"], ["smoke", str(tmp_path), "--twice"], []):
        assert run(no_card, *wrong).returncode == 2


WORK = "work"


def add(part: str, out, piece: str, status: int = 0) -> dict:
    """Record a piece whose files are in `out`/work, and return its record."""
    record.add_piece(part, out, piece, out / WORK, status, seconds=7)
    return json.loads((out / f"{part}.json").read_text())["pieces"][piece]


def end(part: str, out, status: int = 0) -> dict:
    record.write(part, out, out / WORK, status, seconds=9)
    return json.loads((out / f"{part}.json").read_text())


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A folder of results of commit `one`, and where pieces leave their files."""
    monkeypatch.setenv("SLUICEWAY_COMMIT", "one")
    (tmp_path / WORK).mkdir()
    return tmp_path


def test_a_part_is_done_without_a_failure_and_with_nothing_left(out):
    assert not record.is_done("step", out)
    end("step", out, status=1)
    assert not record.is_done("step", out)
    end("step", out)
    assert record.is_done("step", out)
    found = json.loads((out / "step.json").read_text())
    (out / "step.json").write_text(json.dumps({**found, "left": 3}))
    assert not record.is_done("step", out)


def test_files_of_two_commits_are_never_mixed(out, monkeypatch):
    assert record.complaint(out) == ""
    end("bench", out)
    assert record.complaint(out) == ""
    monkeypatch.setenv("SLUICEWAY_COMMIT", "two")
    assert "bench.json is of commit one, expected two" in record.complaint(out)
    monkeypatch.setattr(record, "commit", lambda: "unknown")
    assert "set SLUICEWAY_COMMIT" in record.complaint(out)


def test_a_failed_part_keeps_the_end_of_its_log_and_what_it_had(out):
    (out / WORK / "log.txt").write_text("".join(f"line {i}\n" for i in range(100)))
    add("bench", out, "scan")
    found = end("bench", out, status=124)
    assert found["log"][-1] == "line 99"
    assert found["pieces"]["scan"]["state"] == "passed"
    assert "log" not in end("bench", out)


@pytest.mark.parametrize(
    ("log", "status", "state", "told"),
    [
        (f"[==] tests\n{CLEAN}\n", 0, "passed", "ERROR SUMMARY: 0 errors"),
        (f"[==] tests\n{CLEAN}\n", 1, "failed", "ERROR SUMMARY: 0 errors"),
        ("========= ERROR SUMMARY: 2 errors", 9, "failed", "ERROR SUMMARY: 2 errors"),
        ("Unable to attach\n", 1, "not run", "Unable to attach"),
        ("[==] tests\nhalf of it\n", 124, "not finished", "half of it"),
        ("[==] tests\nhalf of it\n", 137, "not finished", "half of it"),
        (f"[==========] 0 tests from 0 test suites ran.\n{CLEAN}\n", 0, "failed", "no test ran"),
    ],
)
def test_a_sanitizer_has_passed_only_where_it_says_so(out, log, status, state, told):
    (out / WORK / "memcheck_compress.txt").write_text(log)
    found = add("sanitize", out, "memcheck_compress", status)
    assert (found["state"], found["told"], found["seconds"]) == (state, told, 7)
    ended = state in ("passed", "not run")
    assert record.has_piece("sanitize", out, "memcheck_compress") == ended
    assert ("log" in found) != ended


def test_a_piece_that_lacks_its_tool_is_not_run(out):
    (out / WORK / "resources.txt").write_text("no cuobjdump\n")
    for status, state in ((77, "not run"), (1, "failed"), (0, "passed")):
        found = add("build", out, "resources", status)
        assert (found["state"], found["told"], found["seconds"]) == (state, "no cuobjdump", 7)
        assert record.has_piece("build", out, "resources") == (state != "failed")


def test_kernels_cannot_be_looked_at_without_a_tool():
    command = [sys.executable, "-S", str(REPOSITORY / ".ci" / "cuda_resources.py"), "nowhere"]
    done = subprocess.run(
        command, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 77, done.stderr
    assert "no cuobjdump on PATH" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("cases", "state", "told"),
    [
        ('<testcase name="a" status="run"/><testcase name="b"/>', "passed", "2 passed, 0 failed"),
        ('<testcase name="a" status="fail"/>', "failed", "0 passed, 1 failed: a"),
        ('<testcase name="a"><skipped/></testcase>', "failed", "0 passed, 1 failed: a"),
        ('<testcase name="a"><error/></testcase>', "failed", "0 passed, 1 failed: a"),
        ("", "failed", "0 passed, 0 failed"),
    ],
)
def test_tests_that_were_skipped_or_are_missing_have_not_passed(out, cases, state, told):
    (out / WORK / "python.xml").write_text(f"<testsuite>{cases}</testsuite>")
    found = add("smoke", out, "python")
    assert (found["state"], found["told"], found["seconds"]) == (state, told, 7)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("[ RUN      ] A.B\n[       OK ] A.B (3 ms)\n[ RUN      ] A.C\n",
         "1 tests ended, then A.C"),
        ("tests/a.py::x \ntests/a.py::y[1] \n[gw0] [ 50%] PASSED tests/a.py::x \n",
         "1 tests ended, not tests/a.py::y[1]"),
        ("half\n\n", "half"),
    ],
)  # fmt: skip
def test_a_piece_that_was_cut_says_where_it_was(out, log, told):
    (out / WORK / "some.txt").write_text(log)
    found = add("smoke", out, "some", 124)
    assert (found["state"], found["told"]) == ("not finished", told)
    assert found["log"] == log.splitlines()


def test_a_binary_that_runs_no_test_has_not_passed(out):
    (out / WORK / "a_test.txt").write_text("[==========] Running 0 tests from 0 test suites.\n")
    assert add("smoke", out, "a_test")["state"] == "failed"


def test_a_run_passes_where_it_went_to_its_end(out):
    (out / WORK / "native").mkdir()
    summary = {"status": "diverged", "first_eval_loss": 4, "final_eval_loss": 9}
    (out / WORK / "native" / "summary.json").write_text(json.dumps(summary))
    assert add("engines", out, "native")["state"] == "failed"
    summary |= {"status": "done", "median_step_seconds": 0.0123}
    (out / WORK / "native" / "summary.json").write_text(json.dumps(summary))
    assert add("engines", out, "native")["told"] == "done, loss 4 to 9, 12.3 ms a step"


def test_a_benchmark_that_is_run_again_replaces_its_rows(out):
    for us in (1.0, 2.0):
        rows = {"benchmarks": [{"name": "scan<bf16>", "us": us}]}
        (out / WORK / "scan.json").write_text(json.dumps(rows))
        add("bench", out, "scan")
    assert end("bench", out)["rows"] == [{"name": "scan<bf16>", "us": 2.0}]


def test_the_table_has_pieces_kernels_steps_and_memory(out, capsys):
    kernel = {"name": "scan<bf16>/iterations:100/manual_time", "us": 12.34, "gb_per_s": 3000.0,
              "bytes_bind": 1.0, "roof_ratio": 0.912}  # fmt: skip
    library = {"name": "compress_by_gemm", "us": 99.0, "vs_library": 5.25}
    (out / WORK / "scan.json").write_text(json.dumps({"benchmarks": [kernel, library]}))
    add("bench", out, "scan")
    about = {"device": "cuda:0", "dtype": "bf16", "scaled": "s", "left": 2, "commit": "one",
             "machine": {"processor": "P", "cores": 2, "gpu": "G"}}  # fmt: skip
    step = {"shape": "7b", "tokens": 2048, "checkpointing": False, "round": 0, "way": "native",
            "link": None, "pacing": None, "failed": "OutOfMemory: too large"}  # fmt: skip
    (out / "step.json").write_text(json.dumps({**about, "rows": [step]}))
    run = {"model": "7b", "budget": 24 * 10**9, "way": "fused, f = 1/4", "counted": "all",
           "driver_bytes": 20 << 30, "context_bytes": 1 << 29, "torch_bytes": 18 << 30,
           "host_bytes": 1 << 30, "seconds": 0.5, "losses": [10.5, 9.5], "fits": True}  # fmt: skip
    memory = {**about, "tokens": 1024, "vocabulary": 32000, "rows": [run]}
    (out / "memory.json").write_text(json.dumps(memory))
    for part in ("step", "memory", "bench"):
        end(part, out)
    peer = {"way": "torch AdamW", "seconds": 0.1493, "torch_bytes": 11 << 30, "losses": [10.5, 9.5],
            "driver_bytes": 12 << 30, "process_bytes": 2 << 30, "weights": 168}  # fmt: skip
    floor = {**peer, "way": part_tables.FLOOR, "seconds": 0.1325}
    missing = {"way": "FlashAdamW", "missing": "flashoptim is not installed"}
    hung = {"way": "svd", "failed": "did not end within 30 s"}
    peers = {**about, "shape": "1.3b", "tokens": 2048, "rows": [peer, floor, missing, hung]}
    (out / "peers.json").write_text(json.dumps(peers))
    base = {"parameters": 103_000_000, "steps": 2000, "loss": 1.25, "id": "a"}
    learned = [{"way": way, "seed": 0, "base": "a", "before": 2.0, "after": after}
               for way, after in (("torch AdamW", 1.5), ("default", 1.45))]  # fmt: skip
    fidelity = {**about, "steps": 300, "base": base, "rows": learned}
    (out / "fidelity.json").write_text(json.dumps(fidelity))
    record.write_table(out, list(record.PARTS))
    table = (out / "table.txt").read_text()
    assert table == capsys.readouterr().out
    for line in (
        "| step | 0 | 2 | 9 |",
        "| scan | passed | 7 | 2 rows |",
        "| torch AdamW | 149.3 | 1.000 | 100 | 11 GiB | 12 GiB | 2 GiB | 10.500 to 9.500 |",
        f"| {part_tables.FLOOR} | 132.5 | 0.887 | - | 11 GiB",
        "| FlashAdamW | flashoptim is not installed | - |",
        "| svd | failed: did not end within 30 s | - |",
        "103 M parameters, 2000 steps of pretraining to 1.2500 on its own text; then 300 steps",
        "| default | 0 | 2.0000 | 1.4500 | 1.100 |",
        "| scan<bf16> | 12.3 | 3000.0 | - | 0.91 | bytes | - |",
        "| compress_by_gemm | 99.0 | - | - | - | - | 5.25 |",
        "**7b, 2,048 tokens a step, no checkpointing**: no turn ran",
        "- native, round 0, failed: OutOfMemory: too large",
        "| 7b | fused, f = 1/4 | 22.4 GiB | all | 20 GiB | 512 MiB | 18 GiB | 1 GiB | 0.5 | "
        "10.50 to 9.50 | yes |",
    ):
        assert line in table
