"""What the bits of a weight were, to be seen again later, wherever it lies.

On the host device a checksum is a number. On a card it stays there: it is made by the stream that
computes, behind what the stream was given before, and nobody waits for it until two are compared.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sluiceway import _core
from sluiceway.machine.device_ops import Made
from sluiceway.optim.common import torch_private

Checksum = int | Made

_BITS = {2: torch.int16, 4: torch.int32}  # By bytes of an element.
_ROW = 1024  # Elements whose places in a row are told from one another.
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # Multiplies a place, modulo 2^64.


def checksum(weight: torch.Tensor) -> Checksum:
    """Of all elements of a contiguous tensor, in their order."""
    if weight.device.type == "cpu":
        return _core.bits_checksum(weight)
    with torch_private.asking_no_class():
        return sums_of_bits(weight.detach())


def sums_of_bits(weight: torch.Tensor) -> Made:
    """Sums over rows and over columns of the bits, each weighted by its place; on the device.

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
    """Return whether each two are of different bits; waits once for those that are on a card."""
    pairs = list(pairs)
    on_card = [a.take() != b.take() for a, b in pairs if isinstance(a, Made)]
    found = iter(torch.stack(on_card).any(1).tolist() if on_card else [])
    return [next(found) if isinstance(a, Made) else a != b for a, b in pairs]
