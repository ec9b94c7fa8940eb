"""Format what step.py wrote as Markdown; needs no torch."""

from __future__ import annotations

import statistics
from typing import Any

from sluiceway.base.sizes import format_bytes

from experiments.step.step_order import BY_RATIO, NATIVE

_COLUMNS = ("way", "link", "GB/s", "ms a step, all layers", "ratio to native (spread)", "stall",
            "device", "driver", "host", "d2h", "h2d")  # fmt: skip
_SIZES = ("device_bytes", "driver_bytes", "host_bytes", "d2h", "h2d")


def table(result: dict[str, Any]) -> str:
    """Format a table for each shape, number of tokens and kind of activations."""
    rows = result["rows"]
    parts = [f"{result['device']}: {named(result['machine'])}, {result['dtype']}. "
             f"Scaled: {result['scaled']}."]  # fmt: skip
    for case in dict.fromkeys(map(case_of, rows)):
        parts.append(case_table([row for row in rows if case_of(row) == case]))
    return "\n\n".join(parts)


def case_of(row: dict[str, Any]) -> tuple:
    """Values that rows of one table have in common."""
    return row["shape"], row["tokens"], row["checkpointing"]


def way_of(row: dict[str, Any]) -> tuple:
    """Values that rows of one line have in common."""
    return row["way"], row["link"], row["pacing"]


def named(machine: dict[str, Any]) -> str:
    """Name the card, if there is one, and the processor."""
    processor = f"{machine['processor']}, {machine['cores']} cores"
    return f"{machine['gpu']} beside {processor}" if machine["gpu"] else processor


def case_table(rows: list[dict[str, Any]]) -> str:
    """Format medians over the rounds, and below them the turns that failed."""
    shape, tokens, checkpointing = case_of(rows[0])
    title = f"**{shape}, {tokens:,} tokens a step, {'' if checkpointing else 'no '}checkpointing**"
    ran = [row for row in rows if "failed" not in row]
    lines = [f"{title}: no turn ran", ""]
    if ran:
        blocks, layers = ran[0]["blocks"], ran[0]["layers"]
        lines = [f"{title}: {blocks} of {layers} blocks; memory and bytes are theirs", "",
                 "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]  # fmt: skip
    for way in dict.fromkeys(map(way_of, ran)):
        lines.append(line([row for row in ran if way_of(row) == way], ran))
    failed = [failure_line(row) for row in rows if "failed" in row]
    return "\n".join([*lines, *([""] if ran and failed else []), *failed])


def link_name(row: dict[str, Any]) -> str:
    """Name the link for a reader."""
    scaled = " by ratio" if row["pacing"] == BY_RATIO else ""
    return f"{row['link']}{scaled}" if row["link"] else "-"


def failure_line(row: dict[str, Any]) -> str:
    """Format one failed turn and its reason."""
    link = f" over {link_name(row)}" if row["link"] else ""
    return f"- {row['way']}{link}, round {row['round']}, failed: {row['failed']}"


def line(turns: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """Format one way over one link."""
    first, ratios = turns[0], ratios_to_native(turns, rows)
    whole = 1e3 * statistics.median(t["seconds"] for t in turns) * first["layers"] / first["blocks"]
    spread = "-"
    if ratios:
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    stall = statistics.median(t["stall_share"] for t in turns)
    rate = f"{first['gbps']:.3g}" if first["gbps"] else "-"
    sizes = [format_bytes(most(turns, key)) for key in _SIZES]
    cells = (first["way"], link_name(first), rate, f"{whole:.1f}", spread,
             f"{100 * stall:.1f} %", *sizes)  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def most(turns: list[dict[str, Any]], key: str) -> float | None:
    """Return the most over the rounds; None if no turn has the count, as a driver's on the host."""
    return max((t[key] for t in turns if t[key] is not None), default=None)


def ratios_to_native(turns: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[float]:
    """Return one ratio for each round."""
    native = {row["round"]: row["seconds"] for row in rows if row["way"] == NATIVE}
    return [turn["seconds"] / native[turn["round"]] for turn in turns if turn["round"] in native]
