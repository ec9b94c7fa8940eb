"""Bytes this process holds, as the kernel and torch count them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from sluiceway.machine.device_ops import ops_on

_STATUS = Path("/proc/self/status")
# What a process grows by beyond its tensors as it trains: pages of kernels, their scratch, a
# tokenizer, holes between tensors. 76 to 161 MiB were seen, most with several micro-batches a step.
FIRST_USE_BYTES = 120 << 20


def _status(field: str) -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def peak_resident_bytes() -> int:
    """The largest resident set since the process began, or since a `DevicePeak` was made."""
    return _status("VmHWM:")


def resident_bytes() -> int:
    """The resident set now."""
    return _status("VmRSS:")


class DevicePeak:
    """Most bytes that torch held on its device since this was made.

    On a GPU torch counts. On the host our own count of torch's CPU allocations does.

    Parameters
    ----------
    device : torch.device
        Made before the model is loaded; making it resets every peak of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self._ops = ops_on(device)
        with contextlib.suppress(OSError):  # Not every kernel lets us reset it.
            Path("/proc/self/clear_refs").write_text("5")
        self._ops.count_allocations()
        self._ops.reset_peak()

    def read(self) -> int:
        """In bytes."""
        return self._ops.peak_bytes()
