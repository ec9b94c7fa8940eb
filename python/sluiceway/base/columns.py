"""Rows as aligned text: a line stays one line, however narrow the terminal."""

from __future__ import annotations


def columns(rows: list[list[str]], right: str = "") -> str:
    """Rows as lines of equal columns.

    Parameters
    ----------
    right : str
        Numbers of the columns, from 0, that end flush: "12" for the second and third.
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
