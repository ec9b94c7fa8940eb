"""Times and counts of one optimizer step, in the units of the run folder."""

from __future__ import annotations

import resource
import time
from collections import deque
from typing import Any

from sluiceway import _core
from sluiceway.machine.device_ops import DeviceOps


class StepClock:
    """Measures from the end of one step() to the end of the next.

    A device says when a backward was done as soon as it is asked after it: at once on the host
    device, with a later backward on a GPU, for which nobody waits.

    Bytes are counted where they cross, so a step's line holds what crossed between its two ends;
    the last update of a run crosses after the last step. So with stalls: on a GPU a line has those
    that the device has come through, and a later one the rest.

    Parameters
    ----------
    engine : SubspaceEngine or OffloadEngine
    device : DeviceOps
    resident_bytes : int
        Of the model, which the engine has reserved on the device tier.
    """

    def __init__(self, engine: Any, device: DeviceOps, resident_bytes: int) -> None:
        self._engine, self._device = engine, device
        # torch's allocations hold the model too, if it was made after they began to be counted.
        counted = device.allocated_bytes() >= resident_bytes
        self._counted_twice = resident_bytes if counted else 0
        self._last_end = time.perf_counter()
        # Marks of passes whose times are not known yet; the last known one, by the trace's clock.
        self._passes: deque[tuple[Any, Any, Any]] = deque()
        self._known, self._known_us = device.mark(), _core.now_us()
        self._norm = 0.0
        self._seconds = 0.0
        self.raw: dict[str, Any] = engine.take_stats()  # Of the last step, the engine's own too.

    def backward(self, forward_began: Any, backward_began: Any) -> None:
        """A backward ended: the cost model is told how long the device took, once that is known.

        Parameters
        ----------
        forward_began, backward_began : object
            Marks of the device; None for a forward that nobody saw.
        """
        began = backward_began if forward_began is None else forward_began
        self._passes.append((began, backward_began, self._device.mark()))
        self._note_passes()

    def _note_passes(self) -> None:
        """Tell the engine the times of every pass that the device is through with."""
        between = self._device.us_between
        while self._passes:
            forward_began, backward_began, ended = self._passes[0]
            since_known = between(self._known, ended)
            if since_known is None:
                return
            self._passes.popleft()
            forward = max(0.0, between(forward_began, backward_began))
            backward = between(backward_began, ended)
            self._engine.note_device_times(forward * 1e-6, backward * 1e-6)
            self._known, self._known_us = ended, self._known_us + since_known
            middle = self._known_us - backward
            self._engine.add_trace_range("device", "forward", middle - forward, middle)
            self._engine.add_trace_range("device", "backward", middle, self._known_us)

    def step(self, norm: float) -> None:
        """Count a step that ended."""
        now = time.perf_counter()
        self._seconds, self._last_end = now - self._last_end, now
        self._norm = norm
        self._note_passes()
        self.raw = self._engine.take_stats()

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step; keys and units of a line of metrics.jsonl."""
        raw, peak = self.raw, self.raw["peak_bytes"]
        # A gradient that waits for step() is torch's, and reserved by the engine beside it.
        counted_twice = self._counted_twice + raw.get("held_bytes", 0)
        device = peak["device"] - counted_twice + self._device.peak_bytes()
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
