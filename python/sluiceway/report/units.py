"""Formats numbers for people, with a unit and only as many digits as they are worth."""

from __future__ import annotations

import math

from sluiceway.base.sizes import format_bytes

Number = float | int | None

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def count(value: Number) -> str:
    """Write 512, 12 500 or 3.2 M; axes with this format have whole numbers alone."""
    if value is None:
        return "-"
    for least, prefix in _LARGE:
        if abs(value) >= least:
            return f"{_digits(value / least, 3)} {prefix}"
    return f"{value:,.0f}".replace(",", "\u202f") if abs(value) >= 1e4 else _digits(value, 4)


def rate(value: Number) -> str:
    """Write 12 500/s."""
    return "-" if value is None else f"{count(value)}/s"


def number(value: Number) -> str:
    """Write four significant digits: 3.142, 0.0005, 2.5e-07."""
    if value is None:
        return "-"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return _digits(value, 4)


def seconds(value: Number) -> str:
    """Write 850 µs, 12.3 ms, 1.23 s, 4 min 10 s or 1 h 03 min."""
    if value is None:
        return "-"
    for large, unit, small in ((3600, "h", "min"), (60, "min", "s")):
        if value >= max(large, 120):
            rest = int(value % large * 60 // large)
            return f"{int(value // large)} {unit}" + (f" {rest:02d} {small}" if rest else "")
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{_digits(value / size, 3)} {unit}"
    return f"{_digits(value * 1e6, 3)} µs" if value else "0 s"


def share(value: Number) -> str:
    """Write 0.1234 as 12.3 %."""
    return "-" if value is None else f"{_digits(100 * value, 3)} %"


def size(value: Number) -> str:
    """Write 268435456 as 256 MiB."""
    return format_bytes(value)


def _digits(value: float, significant: int) -> str:
    if value == 0:
        return "0"
    decimals = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
