"""Checksums of a weight's bits, on the host or on a GPU, to compare with later.

On the host device a checksum is a number. On a GPU it stays there: the computing stream makes it
after its earlier work, and nothing waits for it until two checksums are compared.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sluiceway import _core
from sluiceway.machine.device_ops import Made
from sluiceway.optim.common import torch_private

Checksum = int | Made

_BITS = {2: torch.int16, 4: torch.int32}  # Keyed by bytes of an element.
_ROW = 1024  # Elements of a row, each weighted by its own place.
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # Multiplies a place, modulo 2^64.


def checksum(weight: torch.Tensor) -> Checksum:
    """Return the checksum of all elements of a contiguous tensor, in their order."""
    if weight.device.type == "cpu":
        return _core.bits_checksum(weight)
    with torch_private.asking_no_class():
        return sums_of_bits(weight.detach())


def sums_of_bits(weight: torch.Tensor) -> Made:
    """Return sums over rows and columns of the bits, each weighted by its place, on the device.

    No temporary is larger than a row or a column of 1024 elements each; the bits are read twice.
    """
    bits = weight.reshape(-1).view(_BITS[weight.itemsize])
    count = bits.numel() // _ROW
    rows = bits[: count * _ROW].view(count, _ROW)
    rest = bits[count * _ROW :].to(torch.int64)
    sums = (rows.sum(1, dtype=torch.int64), rows.sum(0, dtype=torch.int64), rest)
    return Made(torch.stack([_weighted(each) for each in sums]))


def _weighted(numbers: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1, numbers.numel() + 1, device=numbers.device)
    return (numbers * (places * _ODD)).sum()


def differ(pairs: Iterable[tuple[Checksum, Checksum]]) -> list[bool]:
    """Return for each pair whether the bits differ; waits once for all pairs on a GPU."""
    pairs = list(pairs)
    on_card = [a.take() != b.take() for a, b in pairs if isinstance(a, Made)]
    found = iter(torch.stack(on_card).any(1).tolist() if on_card else [])
    return [next(found) if isinstance(a, Made) else a != b for a, b in pairs]
