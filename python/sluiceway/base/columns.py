"""Aligned text for rows: each row stays on one line, however narrow the terminal is."""

from __future__ import annotations

import re
from typing import Any

from sluiceway.base.sizes import format_bytes

_NUMBER = re.compile(r"\d+")
# Keys of a description that are columns, in this order.
_SHOWN = ("shape", "dtype", "codec", "core", "residual", "second_moment", "chunks", "why")
_BYTES = {"device_bytes": "device", "host_bytes": "host", "d2h_bytes": "sent a step"}


def columns(rows: list[list[str]], right: str = "") -> str:
    """Format rows as lines with aligned columns.

    Parameters
    ----------
    right : str
        Indices of the columns to align on the right: "12" for the second and third.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if str(k) in right else text.ljust(width)
            for k, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


class WeightTable(list[dict[str, Any]]):
    """One dict for each weight; prints as a table, in which alike weights of layers are one row.

    `name` is in every dict. Bytes (`..._bytes`) of alike weights are added up, and weights are
    alike if all else is equal.
    """

    def __str__(self) -> str:
        groups: dict[tuple[str, ...], tuple[int, dict[str, int]]] = {}
        weights = [one | {"core": [one["core_rows"], one["core_cols"]]} for one in self]
        shown = [key for key in _SHOWN if any(key in one for one in weights)]
        counted = [key for key in _BYTES if any(key in one for one in weights)]
        for one in weights:
            key = (_NUMBER.sub("*", one["name"]), *(_cell(one[name]) for name in shown))
            count, sums = groups.get(key, (0, dict.fromkeys(counted, 0)))
            groups[key] = count + 1, {name: sums[name] + one[name] for name in counted}
        titles = ["weights", "", *(name.replace("_", " ") for name in shown)]
        rows = [[*titles, *(_BYTES[name] for name in counted)]]
        for (name, *cells), (count, sums) in groups.items():
            row = [name, str(count), *cells, *map(format_bytes, sums.values())]
            rows.append(row)
        return columns(rows, right="".join(map(str, (1, *range(2 + len(shown), len(rows[0]))))))


def _cell(value: Any) -> str:
    if isinstance(value, list):  # A shape.
        return " x ".join(map(str, value)) if any(value) else "-"
    return str(value)
