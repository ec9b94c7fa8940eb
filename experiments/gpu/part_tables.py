"""Tables of all parts in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from sluiceway.base.sizes import format_bytes

from experiments.laptop.memory_table import memory_table
from experiments.step.step_table import table as step_table

# The part that a reader sees last.
_STATES = ("passed", "not run", "not finished", "failed")
FLOOR = "forward and backward, no update"  # The way of `peers` that serves as the baseline.
# Status of a part that has begun and not ended.
_UNTOLD = {"card": {}, "processor": "unknown processor", "commit": "unknown"}


def table(records: list[dict[str, Any]]) -> str:
    """Return one line for each part, then the findings of each."""
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
        lines += ["", f"## {record['part']}"]
        if record.get("rows"):
            lines += ["", _ROW_TABLES.get(record["part"], kernel_table)(record)]
        if record.get("pieces"):
            lines += ["", piece_table(record["pieces"])]
    return "\n".join(lines)


def piece_table(pieces: dict[str, dict[str, Any]]) -> str:
    """Return a line for each piece, passed ones first, and last a count of each state."""
    found = sorted(pieces.items(), key=lambda item: _STATES.index(item[1]["state"]))
    lines = ["| piece | state | s | what it said |", "|---|---|---|---|"]
    for name, piece in found:
        told = piece["told"].replace("|", "/")
        lines.append(f"| {name} | {piece['state']} | {piece['seconds']} | {told} |")
    counts = Counter(piece["state"] for piece in pieces.values())
    told = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    return "\n".join([*lines, "", told])


def peers_table(result: dict[str, Any]) -> str:
    """Return a line for each optimizer."""
    measured = {row["way"]: row for row in result["rows"] if "seconds" in row}
    native, floor = next(iter(measured.values()), None), measured.get(FLOOR)
    head = ["| way | ms a step | to the first row | beyond no update, us a weight | allocator | "
            "driver's count | process | loss |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    title = f"{result['shape']} on {result['device']}, {result['tokens']:,} tokens a step"
    lines = (peer_line(row, native, floor) for row in result["rows"])
    return "\n".join([f"{title}, bf16, checkpointing", "", *head, *lines])


def peer_line(
    row: dict[str, Any], native: dict[str, Any] | None, floor: dict[str, Any] | None
) -> str:
    """Return one optimizer's line, or the reason why it has no figures."""
    if "seconds" not in row:
        told = row.get("missing") or f"failed: {row['failed']}".replace("|", "/")
        return f"| {row['way']} | {told} |" + " - |" * 6
    sizes = [format_bytes(row[key]) for key in ("torch_bytes", "driver_bytes", "process_bytes")]
    beyond = "-"
    if floor is not None and floor is not row:
        beyond = f"{1e6 * (row['seconds'] - floor['seconds']) / row['weights']:.0f}"
    cells = (row["way"], f"{1e3 * row['seconds']:.1f}", f"{row['seconds'] / native['seconds']:.3f}",
             beyond, *sizes, f"{row['losses'][0]:.3f} to {row['losses'][-1]:.3f}")  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def fidelity_table(result: dict[str, Any]) -> str:
    """Return one line per way, with its share of AdamW's gain with the same seed."""
    rows = [row for row in result["rows"] if "after" in row]
    first = next((row["way"] for row in rows), None)
    base = result["base"]
    if "failed" in base:
        return f"pretraining failed: {base['failed']}"
    millions = base["parameters"] / 1e6
    title = (f"{millions:.0f} M parameters, {base['steps']} steps of pretraining to "
             f"{base['loss']:.4f} on its own text; then {result['steps']} steps on another: nats a "
             "byte of its held-out part")  # fmt: skip
    lines = [title, "",
             "| way | seed | before | after | share of the first way's gain |",
             "|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        twin = next((r for r in rows if r["way"] == first and r["seed"] == row["seed"]), None)
        share = "-"
        if twin:
            share = f"{(row['before'] - row['after']) / (twin['before'] - twin['after']):.3f}"
        cells = (row["way"], row["seed"], f"{row['before']:.4f}", f"{row['after']:.4f}", share)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    failed = [f"- {row['way']}, seed {row['seed']}, failed: {row['failed']}"
              for row in result["rows"] if "failed" in row]  # fmt: skip
    return "\n".join([*lines, *([""] if failed else []), *failed])


def kernel_table(record: dict[str, Any]) -> str:
    """Return a line for every kernel and the libraries beside it."""
    head = ["| kernel | us | GB/s | GFLOP/s | of roof | bound by | theirs / ours |",
            "|---|---|---|---|---|---|---|"]  # fmt: skip
    return "\n".join([*head, *map(row_line, record["rows"])])


def row_line(row: dict[str, Any]) -> str:
    """Format a kernel, or a library beside it; a dash where a row lacks a figure."""
    cells = [re.sub(r"/(iterations:\d+|manual_time)", "", row["name"])]
    for key, digits in (("us", 1), ("gb_per_s", 1), ("gflop_per_s", 0), ("roof_ratio", 2)):
        cells.append(f"{row[key]:.{digits}f}" if key in row else "-")
    cells.append({1.0: "bytes", 0.0: "flop"}.get(row.get("bytes_bind", -1.0), "-"))
    cells.append(f"{row['vs_library']:.2f}" if "vs_library" in row else "-")
    return "| " + " | ".join(cells) + " |"


_ROW_TABLES = {
    "step": step_table,
    "memory": memory_table,
    "peers": peers_table,
    "fidelity": fidelity_table,
}
