"""Measure memory as the driver counts it, with contexts, kernels and allocator caches."""

from __future__ import annotations

import threading

import torch
from sluiceway.machine.footprint import resident_bytes


def taken_bytes(device: torch.device) -> int:
    """Bytes that all processes take on a card, or that this process has on the host device."""
    if device.type != "cuda":
        return resident_bytes()
    free, total = torch.cuda.mem_get_info(device)
    return total - free


class TakenPeak:
    """The largest value of `taken_bytes` over all queries.

    Within `with`, a thread queries all the time, which slows the steps a little.
    """

    _EVERY_S = 0.005

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.bytes = taken_bytes(device)

    def look(self) -> int:
        """Query once; return the peak so far."""
        self.bytes = max(self.bytes, taken_bytes(self._device))
        return self.bytes

    def _go_on(self) -> None:
        while not self._end.wait(self._EVERY_S):
            self.look()

    def __enter__(self) -> TakenPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.look()
