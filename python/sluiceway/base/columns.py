"""Aligned text for rows: each row stays on one line, however narrow the terminal is."""

from __future__ import annotations


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
