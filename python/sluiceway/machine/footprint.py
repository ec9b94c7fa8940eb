"""Bytes that this process holds, as the kernel and torch count them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from sluiceway.machine.device_ops import ops_on

_STATUS = Path("/proc/self/status")
# Growth of a process beyond its tensors while it trains: pages of kernels, their scratch, a
# tokenizer, holes between tensors. We saw 76 to 161 MiB, most with several micro-batches a step.
FIRST_USE_BYTES = 120 << 20


def _status(field: str) -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def peak_resident_bytes() -> int:
    """Largest resident set since the process began, or since a `DevicePeak` was made."""
    return _status("VmHWM:")


def resident_bytes() -> int:
    """Present size of the resident set."""
    return _status("VmRSS:")


class DevicePeak:
    """Largest number of bytes that torch has held on its device since this object was made.

    Make it before the model is loaded. Its constructor resets every peak of the process. On a GPU
    torch counts; on the host we count torch's CPU allocations ourselves.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._ops = ops_on(device)
        with contextlib.suppress(OSError):  # Some kernels do not allow the reset.
            Path("/proc/self/clear_refs").write_text("5")
        self._ops.count_allocations()
        self._ops.reset_peak()

    def read(self) -> int:
        """Return the peak in bytes."""
        return self._ops.peak_bytes()
