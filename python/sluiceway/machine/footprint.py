"""Bytes this process holds, as the kernel and torch count them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")


def _status(field: str) -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def resident_bytes() -> int:
    """The resident set now."""
    return _status("VmRSS:")


def peak_resident_bytes() -> int:
    """The largest resident set since the process began, or since a `DevicePeak` was made."""
    return _status("VmHWM:")


def _core() -> Any:
    try:
        from sluiceway import _core as core
    except ImportError:
        return None
    return core


class DevicePeak:
    """Most bytes that torch held on its device since this was made.

    On a GPU torch counts. On the host our own count of torch's CPU allocations does; without the
    compiled module it is the growth of the resident set, which holds more than tensors.

    Parameters
    ----------
    device : torch.device
        Made before the model is loaded; making it resets every peak of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._core = _core() if device.type == "cpu" else None
        with contextlib.suppress(OSError):  # Not every kernel lets us reset it.
            Path("/proc/self/clear_refs").write_text("5")
        self._before = resident_bytes()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif self._core is not None:
            self._core.count_host_allocations()
            self._core.reset_host_peak()

    def read(self) -> int:
        """In bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._core is not None:
            return self._core.host_peak_bytes()
        return max(0, peak_resident_bytes() - self._before)
