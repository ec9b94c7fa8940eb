"""Shows progress to users: a live table on a terminal, else a line from time to time."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import Any, TextIO

from sluiceway.base.columns import columns
from sluiceway.base.sizes import format_bytes
from sluiceway.machine.wear import tb_per_day

_LINE_SECONDS = 5.0
_LIVE_SECONDS = 0.25
_WINDOW = 20  # Steps that rates are averaged over.


class LastingOutput:
    """A stream that a run outlives: if nobody reads it or its disk is full, nothing more is said.

    Parameters
    ----------
    out : TextIO
        After the first error, its file descriptor leads to nowhere.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        """Write a text, or note that the stream has ended."""
        try:
            return self._out.write(text)
        except OSError as error:
            self._end(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or note that the stream has ended."""
        try:
            self._out.flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._out.fileno())
        os.close(nowhere)
        with contextlib.suppress(OSError):
            print(f"sluiceway: standard output: {error.strerror}; the run goes on without it",
                  file=sys.stderr, flush=True)  # fmt: skip


class Progress:
    """Prints the progress of one run.

    Parameters
    ----------
    title : str
        Name of the run in the output.
    steps : int
        Number of steps of the whole run.
    native_seconds : float or None
        Median seconds of a step of plain AdamW in the same process, if they were measured.
    out : TextIO
        Where to write; a terminal gets the live table.
    """

    def __init__(
        self, title: str, steps: int, native_seconds: float | None = None, out: TextIO = sys.stdout
    ) -> None:
        self._title = title
        self._steps = steps
        self._native = native_seconds
        self._out = out
        self._recent: deque[dict[str, Any]] = deque(maxlen=_WINDOW)
        self._eval_loss: float | None = None
        self._skipped = 0
        # Bytes on disk since this process began; new bases are not part of a step.
        self._disk_bytes = {"disk_read": 0, "disk_written": 0, "consolidated": 0}
        self._seconds = 0.0  # All steps since this process began.
        self._shown, self._shown_step = 0.0, -1
        self._fitting = False  # In the step at hand.
        self._shown_fit = 0.0
        self._fitted_seconds = 0.0
        self._live: Any = None

    def __enter__(self) -> Progress:
        if self._out.isatty():
            from rich.console import Console
            from rich.live import Live

            # Drawn by hand: a thread that refreshes would take time from the run's cores.
            console = Console(file=self._out)
            self._live = Live(console=console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._recent:
            self._show(force=True)
        if self._live is not None:
            self._live.stop()

    def __call__(self, line: dict[str, Any]) -> None:
        """Note one line of metrics."""
        if line.get("eval_loss") is not None:
            self._eval_loss = line["eval_loss"]
        if "seconds" in line:
            self._recent.append(self._without_fit(line))
            self._skipped += line.get("skipped", 0)
            self._seconds += line["seconds"]
            for link in self._disk_bytes:
                self._disk_bytes[link] += (line.get("bytes") or {}).get(link, 0)
        elif self._live is None:
            print(f"{self._title}: held-out loss {self._eval_loss:.4f} before the first step",
                  file=self._out, flush=True)  # fmt: skip
            return
        if self._recent:
            self._show(force=line["step"] == self._steps or line.get("eval_loss") is not None)

    def calibrating(self, done: int, wanted: int) -> None:
        """Note that `done` of `wanted` projectors have been fitted."""
        now = time.monotonic()
        if not self._fitting:
            self._fitting, self._shown_fit = True, now  # A quick fit is not worth a line.
        if now - self._shown_fit < self._interval:
            return
        self._shown_fit = now
        self._tell(f"calibrating: {done} of {wanted}")

    def saving(self, step: int) -> None:
        """Note that the run waits for a save to be written."""
        self._tell(f"waits for the save of step {step}")

    def _tell(self, text: str) -> None:
        self._shown_step = -1  # This text replaces the last figures.
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(f"{self._title}\n{text}"), refresh=True)
        else:
            print(f"{self._title}: {text}", file=self._out, flush=True)

    def _without_fit(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the line of a step without seconds for fitting, which later steps do not need."""
        if not self._fitting:
            return line
        self._fitting = False
        fit = min(line.get("learn_seconds") or 0.0, line["seconds"])
        self._fitted_seconds += fit
        return line | {"seconds": line["seconds"] - fit}

    @property
    def _interval(self) -> float:
        """Seconds between two outputs."""
        return _LIVE_SECONDS if self._live else _LINE_SECONDS

    def _show(self, force: bool) -> None:
        now = time.monotonic()
        if not force and now - self._shown < self._interval:
            return
        if self._shown_step == self._recent[-1]["step"]:
            return
        self._shown, self._shown_step = now, self._recent[-1]["step"]
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        else:
            text = "  ".join(f"{name} {value}" for name, value in self.figures().items())
            print(f"{self._title}: {text}", file=self._out, flush=True)

    def figures(self) -> dict[str, str]:
        """Name and text of each figure."""
        last, recent = self._recent[-1], self._recent
        seconds = sum(line["seconds"] for line in recent)
        per_step = seconds / len(recent)
        loss, held_out = last.get("loss"), self._eval_loss
        figures = {
            "step": f"{last['step']}/{self._steps}",
            "loss": "-" if loss is None else f"{loss:.4f}",
            "held-out": "-" if held_out is None else f"{held_out:.4f}",
            "tokens/s": f"{sum(line['tokens'] for line in recent) / seconds:.0f}",
            "s/step": f"{per_step:.3f}",
            "native": f"{100 * self._native / per_step:.0f}%" if self._native else "-",
        }
        figures |= self._traffic(last, seconds)
        if self._fitted_seconds:
            figures["calibration"] = f"{self._fitted_seconds:.1f} s"
        if self._skipped:
            figures["skipped"] = str(self._skipped)
        left = per_step * (self._steps - last["step"])
        figures["ETA"] = f"{int(left // 60)}:{int(left % 60):02d}"
        return figures

    def _traffic(self, last: dict[str, Any], seconds: float) -> dict[str, str]:
        counts, peaks = last.get("bytes") or {}, last.get("peak_bytes") or {}
        links = "/".join(format_bytes(counts.get(link, 0)) for link in ("d2h", "h2d"))
        stalled, waited = (
            sum(line.get(key) or 0.0 for line in self._recent)
            for key in ("stall_seconds", "data_seconds")
        )
        tiers = "/".join(format_bytes(peaks.get(t, 0)) for t in ("device", "host", "pinned"))
        return {
            "d2h/h2d": links,
            **self._disk(seconds),
            "stall": f"{100 * stalled / seconds:.1f}%",
            "data": f"{100 * waited / seconds:.1f}%",
            "device/host/pinned": tiers,
        }

    def _disk(self, seconds: float) -> dict[str, str]:
        """The disk's rates, bytes written, and bytes written in a day, if the run uses a disk."""
        if not any(self._disk_bytes.values()):
            return {}
        rates = [
            sum((line.get("bytes") or {}).get(link, 0) for line in self._recent) / seconds / 1e9
            for link in ("disk_read", "disk_written")
        ]
        figures = {
            "disk r/w": f"{rates[0]:.2f}/{rates[1]:.2f} GB/s",
            "written": format_bytes(self._disk_bytes["disk_written"]),
        }
        consolidated = self._disk_bytes["consolidated"]
        if consolidated:
            figures["new bases"] = format_bytes(consolidated)
        # Over all steps: a new base is rare, and would make the rate of a few steps jump.
        daily = tb_per_day(self._disk_bytes["disk_written"] + consolidated, self._seconds)
        return figures | {"wear": f"{daily:.3g} TB/day"}

    def _table(self) -> Any:
        from rich.text import Text

        rows = [[name, value] for name, value in self.figures().items()]
        return Text(f"{self._title}\n{columns(rows)}")
