"""Cards and drives by name, with rates for plans of machines that are not here.

Sources of the cards' figures are NVIDIA's data sheets, and its papers on the architectures GA102,
AD102 and GB202: memory, its rate, and dense products of bf16 that are summed in fp32.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from sluiceway.base.sizes import parse_bytes
from sluiceway.errors import InvalidArgument

_REACHED = 0.5  # Share of the products' peak that plans assume of a whole step.
# GB/s each way, of what PCIe's generation and lanes carry, about 3/4 of the rating, as of
# NVLink-C2C. A copy within memory that device and host share reads and writes it.
_LINKS = {"3x16": 12, "4x4": 6, "4x8": 12, "4x16": 24, "5x8": 24, "5x16": 48, "c2c": 337,
          "shared": 100}  # fmt: skip
# GB/s of memory that one pass over states reaches: about half of two channels of DDR5-4800 or
# DDR5-5600, of eight channels of DDR4-3200, and of the LPDDR5X of Grace and of a DGX Spark.
_HOST_GBPS = {"laptop": 40, "desktop": 45, "server": 100, "grace": 250, "spark": 130}


@dataclass(frozen=True)
class Card:
    """A card, and the machine that it is usually in.

    Attributes
    ----------
    memory_bytes : int
    tflops, memory_gbps, link_gbps, host_gbps : float
        What a plan assumes, in 1e12 operations and 1e9 bytes a second: half of the peak of dense
        bf16 products, the memory's rating, the link each way, and memory of the host.
    """

    name: str
    memory_bytes: int
    tflops: float
    memory_gbps: float
    link_gbps: float
    host_gbps: float
    shares_memory: bool = False  # Device and host have one memory.


@dataclass(frozen=True)
class Drive:
    """A drive: reads and writes together in 1e9 bytes a second, and its bytes."""

    name: str
    gbps: float
    room_bytes: int


def _card(name: str, gib: int, peak: float, gbps: float, link: str, machine: str) -> Card:
    rates = (_REACHED * peak, gbps, _LINKS[link], _HOST_GBPS[machine])
    return Card(name, gib << 30, *rates, shares_memory=link == "shared")


_CARDS = {
    row[0]: _card(*row)
    for row in (
        ("rtx3050ti-laptop", 4, 20, 192, "4x8", "laptop"),
        ("rtx3060", 12, 25.5, 360, "4x16", "desktop"),
        ("rtx3070", 8, 40.6, 448, "4x16", "desktop"),
        ("rtx3080", 10, 59.5, 760, "4x16", "desktop"),
        ("rtx3090", 24, 71, 936, "4x16", "desktop"),
        ("rtx4060-laptop", 8, 29.2, 256, "4x8", "laptop"),
        ("rtx4060", 8, 30.2, 272, "4x8", "desktop"),
        ("rtx4060ti-16gb", 16, 44.1, 288, "4x8", "desktop"),
        ("rtx4070", 12, 58.3, 504, "4x16", "desktop"),
        ("rtx4080-laptop", 12, 96, 432, "4x8", "laptop"),
        ("rtx4080", 16, 97.5, 717, "4x16", "desktop"),
        ("rtx4090", 24, 165.2, 1008, "4x16", "desktop"),
        ("rtx5070", 12, 61.7, 672, "5x16", "desktop"),
        ("rtx5070ti", 16, 87.9, 896, "5x16", "desktop"),
        ("rtx5080", 16, 112.6, 960, "5x16", "desktop"),
        ("rtx5090", 32, 209.5, 1792, "5x16", "desktop"),
        ("a10", 24, 125, 600, "4x16", "server"),
        ("l4", 24, 121, 300, "4x16", "server"),
        ("l40s", 48, 362, 864, "4x16", "server"),
        ("a100-40gb", 40, 312, 1555, "4x16", "server"),
        ("a100-80gb", 80, 312, 1935, "4x16", "server"),
        ("h100", 80, 989, 3350, "5x16", "server"),
        ("h200", 141, 989, 4800, "5x16", "server"),
        ("gh200", 96, 989, 4000, "c2c", "grace"),
        ("dgx-spark", 119, 62.5, 273, "shared", "spark"),  # 128 GB.
    )
}
# Reads and writes together: below half of the rating for reads alone, since both are mixed.
_DRIVES = {"sata": 0.4, "gen3": 1.5, "gen4": 3.0, "gen5": 5.0}
_DRIVE_BYTES = 10**12


def card_of(name: str) -> Card:
    """Return the card of a name; spaces, hyphens and letters' case do not matter.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The list has no such card; the text names the nearest ones.
    """
    by_key = {_key(one): card for one, card in _CARDS.items()}
    key = re.sub(r"^(nvidia)?(geforce)?", "", _key(name))
    key = f"rtx{key}" if f"rtx{key}" in by_key else key
    if key in by_key:
        return by_key[key]
    near = difflib.get_close_matches(key, by_key, n=3, cutoff=0.6) or list(by_key)
    raise InvalidArgument(
        f"--card is {name!r}, expected a card of the list, such as "
        f"{', '.join(by_key[one].name for one in near)}; for another one give its memory, as "
        "--device 12GiB"
    )


def card_with(memory_bytes: int) -> Card:
    """Return the card of a desktop whose memory is nearest to `memory_bytes`, and is at least it.

    Of several such cards it is the slowest.
    """
    desktop = [card for card in _CARDS.values() if card.host_gbps == _HOST_GBPS["desktop"]]
    least = min((c.memory_bytes for c in desktop if c.memory_bytes >= memory_bytes), default=None)
    if least is None:
        return max(_CARDS.values(), key=lambda card: card.memory_bytes)
    return min((c for c in desktop if c.memory_bytes == least), key=lambda card: card.tflops)


def drive_of(text: str) -> Drive | None:
    """Return the drive of a text such as "gen4" or "gen4:2TB"; None: the text names no drive.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The text names a drive, but its size is not one.
    """
    name, _, room = text.partition(":")
    if (name := name.lower()) not in _DRIVES:
        return None
    try:
        size = parse_bytes(room) if room else _DRIVE_BYTES
    except InvalidArgument as error:
        raise InvalidArgument(f"--disk: {error}") from None
    if not size:
        raise InvalidArgument(f"--disk: {text} has no room; give its size, as in gen4:2TB")
    return Drive(name, _DRIVES[name], size)


def drive_names() -> list[str]:
    """Names of the drives, the slowest first."""
    return list(_DRIVES)


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())
