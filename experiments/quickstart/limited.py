"""Run commands that end at a time limit even if they hang, with their output in files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CUT = 124  # Exit status of a command that was cut at its limit, the same as timeout(1) gives.
_LAST_WORDS_S = 2.0
_LOOK_EVERY_S = 0.05
_LINES_OF_A_LOG = 40


class Limited:
    """Running command, with all processes that it starts in one process group.

    Parameters
    ----------
    command : sequence of str
    log : pathlib.Path
        Receives the command's output while it runs.
    seconds : float
        Time limit, after which the group is killed. A Python process first writes the position of
        each of its threads to the log.
    """

    def __init__(self, command: Sequence[str], log: Path, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Return the exit status, or `CUT`; None while the command runs."""
        if self._process.poll() is None and time.monotonic() >= self._end:
            self._signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_S)
            self.end()
            return CUT
        status = self._process.returncode
        if status is None:
            return None
        self.end()  # A process that the command left behind may hold the card.
        return status if status >= 0 else 128 - status

    def end(self) -> None:
        """Kill the rest of the group."""
        self._signal(signal.SIGKILL)
        # A process in the middle of a driver call may need time to end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def run_limited(command: Sequence[str], log: Path, seconds: float) -> int:
    """Run a command for at most `seconds`; return its exit status, or `CUT`."""
    running = Limited(command, log, seconds)
    try:
        while (status := running.poll()) is None:
            time.sleep(_LOOK_EVERY_S)
        return status
    finally:
        running.end()


def row_of(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the last JSON object that a command prints.

    A command that fails or is cut gives a row with `failed`, and with the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        status = run_limited(command, log, seconds)
        lines = log.read_text(errors="replace").splitlines()
    rows = [line for line in lines if line.startswith("{")]
    if status == 0 and rows:
        return json.loads(rows[-1])
    last = next((line for line in reversed(lines) if line.strip()), "")
    why = f"did not end within {seconds:g} s" if status == CUT else f"exit status {status}: {last}"
    return {"failed": why[:400], "log": lines[-_LINES_OF_A_LOG:]}
