"""All parts as Markdown."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in ("step", "laptop"))

from memory_table import memory_table
from step_table import table as step_table

_ROW_TABLES = {"step": step_table, "memory": memory_table}
# Of parts that their scripts have written to, and that have not ended yet.
_UNTOLD = {"card": {}, "processor": "unknown processor", "commit": "unknown"}


def table(records: list[dict[str, Any]]) -> str:
    """A line for each part, then what each found."""
    if not records:
        return "There is no part yet."
    first = next((record for record in records if "card" in record), _UNTOLD)
    lines = [f"Card: {', '.join(first['card'].values()) or 'none'}. {first['processor']}.",
             f"Commit: {first['commit']}.", "",
             "| part | status | left | s |", "|---|---|---|---|"]  # fmt: skip
    for record in records:
        status = record.get("status", "not finished")
        missed = [name for name, piece in record.get("pieces", {}).items()
                  if piece["state"] == "not run"]  # fmt: skip
        if missed:
            status = f"{status}, not run: {', '.join(missed)}"
        left = record.get("left", 0)
        if record.get("step_args"):
            left = f"{left} of {record['step_args']}".replace("|", "/")
        cells = (record["part"], status, left, record.get("seconds", "-"))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for record in records:
        lines += [
            "",
            f"## {record['part']}",
            "",
            *map(piece_line, record.get("pieces", {}).items()),
        ]
        if record.get("rows"):
            lines += ["", _ROW_TABLES.get(record["part"], kernel_table)(record)]
    return "\n".join(lines)


def piece_line(item: tuple[str, dict[str, Any]]) -> str:
    """What a piece found."""
    name, piece = item
    return f"- {name}: {piece['state']}, {piece['seconds']} s. {piece['told']}".rstrip()


def kernel_table(record: dict[str, Any]) -> str:
    """Every kernel and the libraries beside them."""
    head = ["| kernel | us | GB/s | GFLOP/s | of roof | bound by | theirs / ours |",
            "|---|---|---|---|---|---|---|"]  # fmt: skip
    return "\n".join([*head, *map(row_line, record["rows"])])


def row_line(row: dict[str, Any]) -> str:
    """A kernel, or a library beside it; a dash where a row has no such figure."""
    cells = [re.sub(r"/(iterations:\d+|manual_time)", "", row["name"])]
    for key, digits in (("us", 1), ("gb_per_s", 1), ("gflop_per_s", 0), ("roof_ratio", 2)):
        cells.append(f"{row[key]:.{digits}f}" if key in row else "-")
    cells.append({1.0: "bytes", 0.0: "flop"}.get(row.get("bytes_bind", -1.0), "-"))
    cells.append(f"{row['vs_library']:.2f}" if "vs_library" in row else "-")
    return "| " + " | ".join(cells) + " |"
