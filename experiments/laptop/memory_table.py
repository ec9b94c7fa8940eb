"""Format what memory.py wrote as Markdown; needs no torch."""

from __future__ import annotations

from typing import Any

from sluiceway.base.sizes import format_bytes

_COLUMNS = ("model", "way", "budget", "it holds", "driver's count", "context", "torch holds",
            "host", "s a step", "loss", "fits")  # fmt: skip
_SIZES = ("driver_bytes", "context_bytes", "torch_bytes", "host_bytes")


def memory_table(result: dict[str, Any]) -> str:
    """Format one line per run."""
    lines = [f"{result['device']}, {result['tokens']:,} tokens a step, checkpointing, vocabulary "
             f"{result['vocabulary']:,}", "",
             "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]  # fmt: skip
    return "\n".join([*lines, *map(_line, result["rows"])])


def _line(row: dict[str, Any]) -> str:
    cells = [row["model"], row["way"], format_bytes(row["budget"]), row["counted"]]
    if "failed" in row:
        empty = len(_COLUMNS) - len(cells) - 1
        cells += ["-"] * empty + [f"no: {row['failed'].replace('|', '/')[:80]}"]
    else:
        cells += [format_bytes(row[key]) for key in _SIZES]
        cells += [f"{row['seconds']:.3g}", f"{row['losses'][0]:.2f} to {row['losses'][-1]:.2f}",
                  "yes" if row["fits"] else "no"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"
