"""experiments/quickstart/limited.py: a command that hangs ends at its limit, with its children."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from experiments.quickstart.limited import CUT, Limited, row_of, run_limited

HANGS = "import time\ndef stuck(): time.sleep(60)\nprint('begun')\nstuck()"
STARTS_ANOTHER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid)
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.txt"


def test_a_command_gives_its_status_and_leaves_what_it_printed(log):
    assert run_limited(python("print('one'); raise SystemExit(7)"), log, 60) == 7
    assert log.read_text() == "one\n"
    killed = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run_limited(killed, log, 60) == 128 + 9


def test_a_command_that_hangs_is_cut_and_its_log_says_where_it_was(log):
    began = time.monotonic()
    assert run_limited(python(HANGS), log, 3) == CUT
    assert time.monotonic() - began < 15
    text = log.read_text()
    assert text.startswith("begun\n")
    assert "in stuck" in text


def test_a_command_that_ignores_the_first_signal_is_killed(log):
    ignores = "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(60)"
    assert run_limited(python(ignores), log, 2) == CUT


@pytest.mark.parametrize("then", ["", "import time; time.sleep(60)"])
def test_what_a_command_has_started_ends_with_it(log, then):
    status = run_limited(python(STARTS_ANOTHER + then), log, 5)
    assert status == (CUT if then else 0)
    pid = int(log.read_text().split()[0])
    end = time.monotonic() + 10
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not runs(pid)


def test_output_is_in_the_file_while_the_command_runs(log):
    running = Limited(python(HANGS), log, 60)
    try:
        end = time.monotonic() + 30
        while not log.read_text() and time.monotonic() < end:
            assert running.poll() is None
            time.sleep(0.05)
        assert log.read_text() == "begun\n"
    finally:
        running.end()
    assert running.poll() == 128 + 9


def test_a_row_is_the_last_object_that_is_printed(monkeypatch):
    text = 'print("a warning"); print(\'{"a": 1}\'); print(\'{"a": 2}\'); print("bye")'
    assert row_of(python(text), 60) == {"a": 2}
    assert "PYTHONFAULTHANDLER" not in os.environ


@pytest.mark.parametrize(
    ("text", "seconds", "failed"),
    [
        (HANGS, 2, "did not end within 2 s"),
        ("raise ValueError('of mine')", 60, "exit status 1: ValueError: of mine"),
        ("print('nothing')", 60, "exit status 0: nothing"),
    ],
)
def test_a_command_without_a_row_says_why_and_what_it_printed(text, seconds, failed):
    row = row_of(python(text), seconds)
    assert row["failed"] == failed
    assert row["log"]
