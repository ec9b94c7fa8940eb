"""Byte counts as people write them: "512MiB", "4 GB", 1048576."""

from __future__ import annotations

import re

from sluiceway.errors import InvalidArgument

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}iB": 1 << (10 * (i + 1)) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: int | str) -> int:
    """Turn 4096, "4096", "4KiB" or "1.5 GB" into bytes; KiB is 1024, KB is 1000."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise InvalidArgument(f"size: {value} bytes, expected 0 or more")
        return value
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    unit = {name.lower(): size for name, size in _UNITS.items()}.get(
        match.group(2).lower() if match else "?"
    )
    if match is None or unit is None:
        raise InvalidArgument(
            f"size: {value!r}, expected bytes as an integer or a text such as "
            f'"512MiB"; units are {" ".join(u for u in _UNITS if u)}'
        )
    number = float(match.group(1)) * unit if "." in match.group(1) else int(match.group(1)) * unit
    return int(number)


def format_count(count: int) -> str:
    """Format a count with three significant digits: 8030261248 is "8.03 G"."""
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}{unit}"
    return str(count)


def format_bytes(count: float | None) -> str:
    """Format bytes with three significant digits and a binary unit: 268435456 is "256 MiB"."""
    if count is None:
        return "-"
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count, unit = count / 1024, larger
    decimals = 0 if unit == "B" or count >= 100 else 1 if count >= 10 else 2
    text = f"{count:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if decimals else text} {unit}"
