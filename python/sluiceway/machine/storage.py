"""Findings on disk and link: their speed, and the cost of a slow one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sluiceway.base.sizes import format_bytes, format_count
from sluiceway.errors import IoError, first_line
from sluiceway.machine.finding import MISSING, OK, SLOW, Finding

_SAVE_BYTES = 12  # For each trained fp32 parameter: weight and two moments.
_LEAST_FREE = 1 << 30
_SLOW_DISK_GBPS = 0.2
_SLOW_PCIE_GBPS = 6.0  # PCIe 3.0 x8, page-locked.


def check_folder(folder: Path, option: str = "--path") -> None:
    """Raise IoError unless `folder` is a folder that this process may write to."""
    if not folder.is_dir():
        raise IoError(
            f"{option}: {folder} is not a folder; name a folder on the disk to measure",
            errno.ENOENT,
            str(folder),
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IoError(f"{option}: {folder} is not writable", errno.EACCES, str(folder))


def disk_findings(path: Path, quick: bool) -> Iterator[Finding]:
    """Yield findings on the disk that holds a folder; `quick` skips measuring its rates."""
    yield from _direct(path)
    if not quick:
        yield from _disk_rates(path)
    free = shutil.disk_usage(path).free
    # A run keeps two saves, or one and the save being written. A disk tier has two slots.
    room = free / (2 * _SAVE_BYTES)
    held = f"saves, or a disk tier, of up to {format_count(int(room))} trained parameters"
    text = f"{format_bytes(free)}: {held}"
    few = free < _LEAST_FREE
    advice = "too little for most saves: free some, or take another --out" if few else ""
    yield Finding("free space", text, MISSING if few else OK, advice, figures={"bytes": free})


def _direct(path: Path) -> Iterator[Finding]:
    try:
        from sluiceway.machine.disk import has_direct
    except ImportError:  # No torch, which an earlier finding says.
        return
    costs = "the disk tier goes through the page cache, which takes memory; try another disk"
    try:
        passed, why = has_direct(path), ""
    except IoError as error:
        passed, why = False, f": {error}"
    if passed:
        yield Finding("O_DIRECT", f"yes, in {path}")
    else:
        yield Finding("O_DIRECT", f"refused in {path}{why}", MISSING, costs)


def _disk_rates(path: Path) -> Iterator[Finding]:
    try:
        from sluiceway.machine.disk import disk_rates
    except ImportError:  # No torch, which an earlier finding says.
        return
    try:
        rates = disk_rates(path, ("write", "read"))
    except IoError as error:
        advice = "nothing can be saved here: free some space, or take another --out"
        yield Finding("disk write", str(error), MISSING, advice)
        return
    for way in ("write", "read"):
        rate = rates[way]["gbps"]
        minutes = 1e9 * _SAVE_BYTES / (1e9 * rate) / 60
        costs = f"a save of 1 G parameters takes {minutes:.1f} minutes; try another disk"
        past = "" if rates["direct"] else ", through the page cache"
        slow = rate < _SLOW_DISK_GBPS
        figures = {**rates[way], "direct": rates["direct"], "huge_bytes": rates["huge_bytes"]}
        yield Finding(
            f"disk {way}",
            f"{rate:.2f} GB/s{past}",
            SLOW if slow else OK,
            costs if slow else "",
            figures=figures,
        )


def link_findings() -> Iterator[Finding]:
    """Yield a finding on the measured rate between host and device."""
    try:
        import torch

        from sluiceway.machine.roofs import link_seconds
    except ImportError:  # No torch, which an earlier finding says.
        return
    size = 64 << 20
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        seconds = link_seconds(size, device)
    except RuntimeError as error:  # The GPU fails, or other processes hold it.
        yield Finding("link", f"not measured: {first_line(error)}", MISSING, "free the GPU")
        return
    rates = {f"{way}_gbps": size / s / 1e9 for way, s in seconds.items()}
    if device.type == "cpu":
        text = f"{rates['d2h_gbps']:.1f} GB/s: the link of the host device is a memory copy"
        yield Finding("link", text, OK, "device.link throttles it", figures=rates)
        return
    slow = min(rates.values()) < _SLOW_PCIE_GBPS
    yield Finding(
        "link",
        f"{rates['d2h_gbps']:.1f} GB/s to the host, {rates['h2d_gbps']:.1f} GB/s to the device, "
        "page-locked",
        SLOW if slow else OK,
        "fewer lanes than the card has: look at the slot; sluiceway plan computes the cost"
        if slow
        else "",
        figures=rates,
    )
