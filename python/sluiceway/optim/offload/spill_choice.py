"""What of a compressed gradient waits for its update: what `spill="auto"` stands for.

A step decompresses each core once behind the backward, and then updates. By the element, with g
bytes of a gradient, w of a core, a decompression of c seconds, and rates of disk, host memory and
link (docs/store.md section 8):

    gradient   max(g / disk, c, w / link) + max((24 + g) / disk, 28 / host)
    core       max(c, w / link)           + max(24 / disk, 28 / host + c, w / link)

Lanes work side by side, so the slowest counts. Rates that nobody gives are those of an ordinary
machine, and nothing is measured: the same options choose the same on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

from sluiceway.config.engines.offload import OffloadOptions
from sluiceway.config.values import Link
from sluiceway.machine.placement import DTYPES

STATE_BYTES = 12  # Of an element: two moments and the master, read and written in a step.
ADAM_BYTES = 28  # Read and written per element in memory: gradient, moments, master, weight.
# Of an ordinary machine.
_DISK_GBPS = 3.0
_HOST_GBPS = 10.0
_LINK_GBPS = 12.0
# Of a core that decompresses; _core.decompress_seconds() found 49 to 68 and 18 to 19.
_BLOCK_GFLOPS = 50.0
_SPARSE_GFLOPS = 18.0


class SpillChoice(NamedTuple):
    """What waits, and for people why; nothing where it was said, or there are no cores."""

    spill: str
    why: str = ""


class Rates(NamedTuple):
    """In GB/s, of a disk, reads and writes together, and of host memory; None: ordinary ones."""

    disk_gbps: float | None = None
    host_gbps: float | None = None


ORDINARY = Rates()


def choose_spill(
    options: OffloadOptions, gradients: str, link: Link | None, rates: Rates = ORDINARY
) -> SpillChoice:
    """What the option `spill` stands for.

    Parameters
    ----------
    gradients : str
        What gradients are rounded to.
    link : Link, optional
        A throttle.
    """
    if options.codec == "identity":
        return SpillChoice("gradient")
    if options.spill != "auto":
        return SpillChoice(options.spill)
    host = rates.host_gbps or _HOST_GBPS
    disk = (rates.disk_gbps or _DISK_GBPS) if options.tier == "disk" else host
    rate = min(_LINK_GBPS, link.d2h_gbps) if link else _LINK_GBPS
    share = 1.0 if options.d else options.ratio  # At most: shapes are not looked at.
    out = share**2 * DTYPES[options.wire].itemsize / rate
    decompress = _flops(options, share) / (
        _BLOCK_GFLOPS if options.codec == "block_random" else _SPARSE_GFLOPS
    )
    g, adam, states = DTYPES[gradients].itemsize, ADAM_BYTES / host, 2 * STATE_BYTES
    gradient = max(g / disk, decompress, out) + max((states + g) / disk, adam)
    core = max(decompress, out) + max(states / disk, adam + decompress, out)
    spill = "core" if core < gradient else "gradient"
    where = f"{disk:.3g} GB/s of disk, " if options.tier == "disk" else ""
    return SpillChoice(
        spill,
        f"{spill}, as a weight takes {gradient:.3g} ns a step where its gradient waits, "
        f"{core:.3g} ns where its core does, at {where}{host:.3g} GB/s of host memory and "
        f"{rate:.3g} GB/s of link",
    )


def no_room_for_cores() -> SpillChoice:
    """Where the one that was chosen does not fit."""
    return SpillChoice("gradient", "gradient, as budget.host has no room for one more core")


def _flops(options: OffloadOptions, share: float) -> float:
    """Of a decompressed element: two products, of rows of so many nonzeros."""
    nonzeros = share * options.block if options.codec == "block_random" else options.nnz
    return 2 * nonzeros * (1 + share)
