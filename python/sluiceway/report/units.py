"""Units of numbers, chosen by their size."""

from __future__ import annotations

import math

from sluiceway.base.sizes import format_bytes as size  # noqa: F401

_TIMES = ((7200, 3600.0, " h"), (120, 60.0, " min"), (1, 1.0, " s"), (1e-3, 1e-3, " ms"))


def axis_unit(unit: str, most: float) -> tuple[float, str]:
    """Return the worth and the name of an axis' unit; "B", "s" and "%" are scaled to `most`."""
    if unit == "B":
        power = min(4, int(math.log(max(most, 1), 1024)))
        return 1024.0**power, f" {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
    if unit == "s":
        return next(
            ((worth, name) for least, worth, name in _TIMES if most >= least), (1e-6, " µs")
        )
    return (0.01, "%") if unit == "%" else (1.0, unit)


def seconds(value: float) -> str:
    """Write 850 µs, 12.3 ms, 4.5 min or 1.05 h."""
    worth, name = axis_unit("s", value)
    return f"{value / worth:.4g}{name}" if value else "0 s"
