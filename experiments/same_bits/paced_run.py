"""Run the demo in steps on request, so that two runs can take turns on one machine."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from experiments.same_bits.checkouts import Side

# Longer than any turn takes; after it the run is killed.
OVERRIDES = {"train.steps": 1_000_000, "train.eval_every": 0, "data.eval": "[]", "compare": None}
WARMUP_STEPS = 3  # The first steps allocate and calibrate.
# The interrupted step and the next, as the throttled link has meanwhile run empty.
AFTER_A_STOP = 2


class PacedRun:
    """A training process of one side that is stopped outside the time slices it is given.

    Enter it to start the process, leave it to kill the process.
    """

    def __init__(self, side: Side, folder: Path, link_gbps: float) -> None:
        self._side = side
        self._folder = folder / side.name
        self._log = folder / f"{side.name}.log"
        self._link_gbps = link_gbps
        self._steps_seen = 0

    def __enter__(self) -> PacedRun:
        self._process = self._side.start(self._folder, OVERRIDES, self._link_gbps, self._log)
        while len(self._seconds()) < WARMUP_STEPS:
            self._let(0.2)
        self._steps_seen = len(self._seconds())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def steps_in(self, duration: float) -> list[float]:
        """Let the run go on for `duration` seconds; return seconds of whole steps, at least one."""
        while True:
            self._let(duration)
            seconds = self._seconds()
            steps = seconds[self._steps_seen + AFTER_A_STOP :]
            self._steps_seen = len(seconds)
            if steps:
                return steps
            duration *= 2  # One step of this machine takes longer than the slice.

    def _let(self, duration: float) -> None:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(duration)
        self._process.send_signal(signal.SIGSTOP)
        if self._process.poll() is not None:
            code = self._process.returncode
            print(f"{self._log}: the run ended early, with {code}", file=sys.stderr)
            raise SystemExit(2)

    def _seconds(self) -> list[float]:
        """Seconds of every step so far; the last line of the file may be half written."""
        metrics = self._folder / "metrics.jsonl"
        if not metrics.exists():
            return []
        lines = [json.loads(line) for line in metrics.read_text().splitlines(True)
                 if line.endswith("\n")]  # fmt: skip
        return [line["seconds"] for line in lines if line["step"] > 0]
