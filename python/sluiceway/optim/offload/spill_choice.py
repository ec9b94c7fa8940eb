"""Resolves spill="auto": whether a gradient or its core waits for the update.

A step decompresses each core once after the backward, and then updates. The time per element, with
g bytes of a gradient, w bytes of a core, c seconds of decompression, and rates of disk, host memory
and link, is (docs/store.md section 9):

    gradient   max(g / disk, c, w / link) + max((2 s + g) / disk, a)
    core       max(c, w / link)           + max(2 s / disk, a + c, w / link)

where s are the bytes of an element's moments and master, and a = (2 s + 4) / host + r is AdamW,
with r seconds to round the states.

Lanes work side by side, so the slowest counts. Rates that the user does not give are those of an
ordinary machine. Nothing is measured, so the same options choose the same on every machine, but
for one that has no room for cores in host memory, where gradients wait.
"""

from __future__ import annotations

from typing import NamedTuple

from sluiceway.config.engines.offload import OffloadOptions
from sluiceway.config.values import Link
from sluiceway.machine.placement import DTYPES

# Bytes per element of two moments, and of a bf16 weight's master. Other masters have 4.
_STATE_BYTES = {"fp32": (8, 4), "bf16": (4, 2), "8bit": (2, 3)}
# Nanoseconds in which one core rounds an element's states (experiments/bench, state_codec_bench).
_ROUNDING_NS = {"fp32": 0.0, "bf16": 2.0, "8bit": 5.0}
# Rates of an ordinary machine.
_DISK_GBPS = 3.0
_HOST_GBPS = 10.0
_LINK_GBPS = 12.0
# Rates of decompression on one CPU core; _core.decompress_seconds() found 49 to 68 and 18 to 19.
_BLOCK_GFLOPS = 50.0
_SPARSE_GFLOPS = 18.0


class SpillChoice(NamedTuple):
    """The resolved `spill` and its reason; no reason if the user chose, or without cores."""

    spill: str
    why: str = ""


class Rates(NamedTuple):
    """Rates in GB/s of a disk and of host memory; None means the rate of an ordinary machine."""

    disk_gbps: float | None = None
    host_gbps: float | None = None


ORDINARY = Rates()


def choose_spill(
    options: OffloadOptions, gradients: str, link: Link | None, rates: Rates = ORDINARY
) -> SpillChoice:
    """Resolve the option `spill`.

    Parameters
    ----------
    gradients : str
        The type that gradients are rounded to.
    link : Link, optional
        The throttled rate of the link, if the user limits it.
    """
    if options.codec == "identity":
        return SpillChoice("gradient")
    if options.spill != "auto":
        return SpillChoice(options.spill)
    host = rates.host_gbps or _HOST_GBPS
    on_disk = options.tier != "host"  # For tier auto, the part that does not fit decides.
    disk = (rates.disk_gbps or _DISK_GBPS) if on_disk else host
    rate = min(_LINK_GBPS, link.d2h_gbps) if link else _LINK_GBPS
    share = 1.0 if options.d else options.ratio  # An upper bound, as shapes are not known here.
    out = share**2 * DTYPES[options.wire].itemsize / rate
    decompress = _flops(options, share) / (
        _BLOCK_GFLOPS if options.codec == "block_random" else _SPARSE_GFLOPS
    )
    moments, master = _STATE_BYTES[options.state_codec]
    g, states = DTYPES[gradients].itemsize, 2 * (moments + (master if gradients == "bf16" else 4))
    adam = 1e9 * adam_seconds(options.state_codec, states / 2, 1, host)
    gradient = max(g / disk, decompress, out) + max((states + g) / disk, adam)
    core = max(decompress, out) + max(states / disk, adam + decompress, out)
    spill = "core" if core < gradient else "gradient"
    where = f"{disk:.3g} GB/s of disk, " if on_disk else ""
    return SpillChoice(
        spill,
        f"{spill}, as a weight takes {gradient:.3g} ns a step if its gradient waits, "
        f"{core:.3g} ns if its core does, at {where}{host:.3g} GB/s of host memory and "
        f"{rate:.3g} GB/s of link",
    )


def adam_seconds(
    state_codec: str, states: float, elements: int, host_gbps: float, threads: int = 1
) -> float:
    """Return the time of AdamW on the host.

    Parameters
    ----------
    states : float
        Bytes of moments and masters, which it reads and writes beside 16-bit gradients and weights.
    threads : int
        Threads that share the rounding; together they reach `host_gbps`.
    """
    moved = 2 * states + 4 * elements
    return moved / (1e9 * host_gbps) + 1e-9 * _ROUNDING_NS[state_codec] * elements / threads


def no_room_for_cores() -> SpillChoice:
    """Return the choice "gradient", for a host budget in which cores do not fit."""
    return SpillChoice("gradient", "gradient, as budget.host has no room for one more core")


def _flops(options: OffloadOptions, share: float) -> float:
    """Return the flops to decompress one element: two products with rows of few nonzeros."""
    nonzeros = share * options.block if options.codec == "block_random" else options.nnz
    return 2 * nonzeros * (1 + share)
