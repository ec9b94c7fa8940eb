"""Measures times and counts of each optimizer step, in the units of the run folder."""

from __future__ import annotations

import resource
import time
from collections import deque
from typing import Any

from sluiceway import _core
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.common.activations import Activations


class StepClock:
    """Measures each step from the end of the previous `step()` to the end of its own.

    The time of a backward is known at once on the host device, and with a later backward on a GPU,
    since the clock never waits for the GPU.

    Bytes are counted when they cross, so a step's line has the bytes that crossed between its two
    ends; the last update of a run crosses after the last step. Likewise on a GPU a step's line has
    the stalls that the device has finished, and a later line has the rest. `resident_bytes` are the
    bytes of the model, which the engine has reserved on the device tier. The numbers include those
    of `activations`, if they leave the device.
    """

    def __init__(
        self,
        engine: Any,
        device: DeviceOps,
        resident_bytes: int,
        activations: Activations | None = None,
    ) -> None:
        self._engine, self._device, self._activations = engine, device, activations
        self._counted = {"read": 0, "written": 0}  # Bytes of activations, until the last step.
        # torch's allocations hold the model too, if it was made after they began to be counted.
        counted = device.allocated_bytes() >= resident_bytes
        self._counted_twice = resident_bytes if counted else 0
        self._last_end = time.perf_counter()
        # Marks of passes with unknown times, and the last mark whose time on the trace is known.
        self._passes: deque[tuple[Any, Any, Any]] = deque()
        self._known, self._known_us = device.mark(), _core.now_us()
        self._norm = 0.0
        self._seconds = 0.0
        self.raw = self._taken()  # The numbers of the last step.

    def _taken(self) -> dict[str, Any]:
        raw = self._engine.take_stats()
        if self._activations is None:
            return raw
        use = self._activations.core.take_use()
        raw["stall_seconds"] += use["stall_seconds"]
        for way, before in self._counted.items():
            count = use[f"bytes_{way}"]
            raw[f"disk_{way}_bytes"] = raw.get(f"disk_{way}_bytes", 0) + count - before
            self._counted[way] = count
        return raw

    def forget_activations(self) -> None:
        """Count and hold them no more."""
        self._activations = None

    def backward(self, forward_began: Any, backward_began: Any) -> None:
        """Count a backward that ended; the cost model gets its device time once that is known.

        It began at these marks of the device; None for a forward that was not seen.
        """
        began = backward_began if forward_began is None else forward_began
        self._passes.append((began, backward_began, self._device.mark()))
        self._note_passes()

    def _note_passes(self) -> None:
        """Tell the engine the times of every pass that the device has finished."""
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
            self._engine.trace.add_range("device", "forward", middle - forward, middle)
            self._engine.trace.add_range("device", "backward", middle, self._known_us)

    def step(self, norm: float) -> None:
        """Count a step that ended."""
        now = time.perf_counter()
        self._seconds, self._last_end = now - self._last_end, now
        self._norm = norm
        self._note_passes()
        self.raw = self._taken()

    def stats(self) -> dict[str, Any]:
        """Return the last step's numbers with the keys and units of a line of metrics.jsonl."""
        raw, peak = self.raw, self.raw["peak_bytes"]
        # torch allocated a gradient that waits for step(), and the engine has reserved it as well.
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
