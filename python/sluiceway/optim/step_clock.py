"""Times and counts of one optimizer step, in the units of the run folder."""

from __future__ import annotations

import resource
import time
from typing import Any

from sluiceway import _core


class StepClock:
    """Measures from the end of one step() to the end of the next.

    Bytes are counted where they cross, so a step's line holds what crossed between its two ends;
    the last update of a run crosses after the last step.

    Parameters
    ----------
    engine : SubspaceEngine or OffloadEngine
    resident_bytes : int
        Of the model, which the engine has reserved on the device tier.
    """

    def __init__(self, engine: Any, resident_bytes: int) -> None:
        self._engine = engine
        # torch's allocations hold the model too, if it was made after they began to be counted.
        counted = _core.host_allocated_bytes() >= resident_bytes
        self._counted_twice = resident_bytes if counted else 0
        self._last_end = time.perf_counter()
        self._norm = 0.0
        self._seconds = 0.0
        self.raw: dict[str, Any] = engine.take_stats()  # Of the last step, the engine's own too.

    def backward(self, forward_began_us: float, backward_began_us: float) -> None:
        """A backward ended: tell the cost model how long the device took."""
        now = _core.now_us()
        forward = max(0.0, backward_began_us - forward_began_us)
        backward = now - backward_began_us
        self._engine.note_device_times(forward * 1e-6, backward * 1e-6)
        self._engine.add_trace_range("device", "forward", forward_began_us, backward_began_us)
        self._engine.add_trace_range("device", "backward", backward_began_us, now)

    def step(self, norm: float) -> None:
        """A step ended."""
        now = time.perf_counter()
        self._seconds, self._last_end = now - self._last_end, now
        self._norm = norm
        self.raw = self._engine.take_stats()

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step; keys and units of a line of metrics.jsonl."""
        raw, peak = self.raw, self.raw["peak_bytes"]
        # A gradient that waits for step() is torch's, and reserved by the engine beside it.
        counted_twice = self._counted_twice + raw.get("held_bytes", 0)
        device = peak["device"] - counted_twice + _core.host_peak_bytes()
        return {
            "seconds": self._seconds,
            "device_seconds": max(0.0, self._seconds - raw["stall_seconds"]),
            "stall_seconds": raw["stall_seconds"],
            "host_seconds": raw["host_seconds"],
            "grad_norm": self._norm,
            "bytes": {
                "d2h": raw["d2h_bytes"],
                "h2d": raw["h2d_bytes"],
                "disk_read": raw.get("disk_read_bytes", 0),
                "disk_written": raw.get("disk_written_bytes", 0),
            },
            "peak_bytes": {
                "device": device,
                "host": peak["host"],
                "pinned": peak["pinned"],
                "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            },
        }
