"""Commands that end at a limit, whatever becomes of them, and leave their output in files."""

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

CUT = 124  # Exit status of a command that was cut at its limit, as of timeout(1).
_LAST_WORDS_S = 2.0
_LOOK_EVERY_S = 0.05
_LINES_OF_A_LOG = 40


class Limited:
    """A command that has begun, with all processes that it starts in a group of its own.

    Parameters
    ----------
    command : sequence of str
    log : pathlib.Path
        Gets what the command prints, while it runs.
    seconds : float
        After them the group is ended. A Python process first writes to the log where each of its
        threads is.
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
        self.end()  # A process that it left behind may hold the card.
        return status if status >= 0 else 128 - status

    def end(self) -> None:
        """Kill what is left of the group."""
        self._signal(signal.SIGKILL)
        # A process in the middle of a call of the driver may take its time.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def run_limited(command: Sequence[str], log: Path, seconds: float) -> int:
    """Run a command for at most so long; returns its exit status, or `CUT`."""
    running = Limited(command, log, seconds)
    try:
        while (status := running.poll()) is None:
            time.sleep(_LOOK_EVERY_S)
        return status
    finally:
        running.end()


def row_of(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return what a command prints as its last JSON object.

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
