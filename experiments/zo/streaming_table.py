"""Format what streaming.py wrote as Markdown; needs no torch."""

from __future__ import annotations

import math
import statistics
from typing import Any

ROUND, PENDING, PREFETCH, SAVING = "round", "pending", "prefetch", "saving"
PROCESSOR = "processor_seconds"  # Processor seconds of all threads.
CONFIDENCE = 0.90
_COLUMNS = ("mode", "link / compute", "GB/s", "step, s", "processor, s", "/ max(link, compute)",
            "/ in memory", "by processor", "stall", "h2d, MB", "d2h, MB", "ahead, MB")  # fmt: skip

_OF_PENDING = ("mode", "link / compute", "1 pending, s", "most pending, s", "each adds, ms",
               "of processor, ms")  # fmt: skip
_OF_SAVING = ("mode", "link / compute", "step, s", "beside a save, s", "ratio", "steps of a save")


def tables(result: dict[str, Any]) -> str:
    """Format steps after a base, the cost of each pending step, and steps beside a save."""
    found = [step_table(result), pending_table(result)]
    if any(row["kind"] == SAVING for row in result["rows"]):
        found.append(saving_table(result))
    return "\n\n".join(found)


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median, and the order statistics that hold it with `CONFIDENCE` or more.

    With too few values for that, returns the least and the most.
    """
    ordered, count, below, outside = sorted(values), len(values), 0, 0.0
    while below < (count - 1) // 2:
        outside += math.comb(count, below) / 2**count
        if outside > (1 - CONFIDENCE) / 2:
            break
        below += 1
    place = max(below - 1, 0)
    return ordered[place], statistics.median(ordered), ordered[count - 1 - place]


def ways_of(rows: list[dict[str, Any]]) -> list[tuple[str | None, float | None]]:
    """Return mode and ratio of each way, in order."""
    return list(dict.fromkeys((row["mode"], row["ratio"]) for row in rows))


def of_way(rows: list[dict[str, Any]], mode: str | None, ratio: float | None) -> list[dict]:
    """Rows of a way, by round."""
    found = [row for row in rows if (row["mode"], row["ratio"]) == (mode, ratio)]
    return sorted(found, key=lambda row: row["round"])


def step_table(result: dict[str, Any]) -> str:
    """Format one line for each way: medians over rounds, and ratios within a round."""
    rounds = [row for row in result["rows"] if row["kind"] == ROUND]
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
    for mode, ratio in ways_of(rounds):
        lines.append("| " + " | ".join(cells(result, rounds, mode, ratio)) + " |")
    return "\n".join(lines)


def cells(
    result: dict[str, Any], rounds: list[dict[str, Any]], mode: str | None, ratio: float | None
) -> list[str]:
    """Cells of one line."""
    turns = of_way(rounds, mode, ratio)
    link = "-" if ratio is None else f"{ratio:g}"
    rate = "-" if ratio is None else f"{turns[0]['gbps']:.3f}"
    seconds = statistics.median(seconds_of(turns))
    stalls = [sum(t["stall_seconds"]) / sum(t["seconds"]) for t in turns]
    crossed = [f"{mean_bytes(turns, way) / 1e6:.1f}" for way in ("h2d", "d2h")]
    return [
        "in memory" if mode is None else mode + (", all resident" if ratio is None else ""),
        link, rate, f"{seconds:.3f}", f"{statistics.median(seconds_of(turns, PROCESSOR)):.3f}",
        as_text(ratios(seconds_of(turns), bounds(result, rounds, mode, ratio))) if ratio else "-",
        *(to_memory(rounds, turns, clock) for clock in ("seconds", PROCESSOR)),
        f"{100 * statistics.median(stalls):.1f} %", *crossed, ahead(result, mode, ratio),
    ]  # fmt: skip


def seconds_of(turns: list[dict[str, Any]], clock: str = "seconds") -> list[float]:
    """Seconds of a step, by round."""
    return [statistics.median(turn[clock]) for turn in turns]


def bounds(
    result: dict[str, Any], rounds: list[dict[str, Any]], mode: str | None, ratio: float
) -> list[float]:
    """Return the lower bound of a step's seconds, by round."""
    link = result["crossing_bytes"][mode] / (1e9 * of_way(rounds, mode, ratio)[0]["gbps"])
    return [max(link, compute) for compute in seconds_of(of_way(rounds, mode, None))]


def to_memory(rounds: list[dict[str, Any]], turns: list[dict[str, Any]], clock: str) -> str:
    """Format the ratio to weights that stay on the device."""
    if turns[0]["mode"] is None:
        return "-"
    others = seconds_of(of_way(rounds, None, None), clock)
    return as_text(ratios(seconds_of(turns, clock), others))


def ratios(seconds: list[float], others: list[float]) -> tuple[float, float, float]:
    """Ratios of times in the same rounds."""
    return median_interval([a / b for a, b in zip(seconds, others, strict=True)])


def as_text(interval: tuple[float, float, float]) -> str:
    """Format a median and its interval."""
    low, median, high = interval
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def mean_bytes(turns: list[dict[str, Any]], way: str) -> float:
    """Mean bytes of a step over all turns."""
    return statistics.fmean(count for turn in turns for count in turn[way])


def ahead(result: dict[str, Any], mode: str | None, ratio: float | None) -> str:
    """Format the megabytes of the next step that had arrived before the commit."""
    for row in result["rows"]:
        if (row["kind"], row["mode"], row["ratio"]) == (PREFETCH, mode, ratio):
            return f"{statistics.median(row['ahead_bytes']) / 1e6:.1f}"
    return "-"


def pending_table(result: dict[str, Any]) -> str:
    """Format seconds with few and with many pending steps, and the cost of each by a line fit."""
    rows = [row for row in result["rows"] if row["kind"] == PENDING]
    lines = ["| " + " | ".join(_OF_PENDING) + " |", "|---" * len(_OF_PENDING) + "|"]
    for mode, ratio in ways_of(rows):
        seconds, used = (by_pending(of_way(rows, mode, ratio), c) for c in ("seconds", PROCESSOR))
        link = "all resident" if ratio is None else f"{ratio:g}"
        most = f"{seconds[-1]:.3f} ({len(seconds)})"
        adds = " | ".join(f"{1e3 * slope_of(clock):.1f}" for clock in (seconds, used))
        lines.append(f"| {mode} | {link} | {seconds[0]:.3f} | {most} | {adds} |")
    return "\n".join(lines)


def saving_table(result: dict[str, Any]) -> str:
    """Compare steps while a save is written with those before it: medians over turns."""
    rows = [row for row in result["rows"] if row["kind"] == SAVING]
    lines = ["| " + " | ".join(_OF_SAVING) + " |", "|---" * len(_OF_SAVING) + "|"]
    for mode, ratio in ways_of(rows):
        turns = of_way(rows, mode, ratio)
        link = "all resident" if ratio is None else f"{ratio:g}"
        plain, beside = seconds_of(turns, "plain_seconds"), seconds_of(turns)
        count = statistics.median(len(turn["seconds"]) for turn in turns)
        lines.append(
            f"| {mode} | {link} | {statistics.median(plain):.3f} | {statistics.median(beside):.3f} "
            f"| {as_text(ratios(beside, plain))} | {count:g} |"
        )
    return "\n".join(lines)


def by_pending(turns: list[dict[str, Any]], clock: str) -> list[float]:
    """Return medians over turns for 1 pending step and more; a turn's first step is not timed."""
    return [statistics.median(found) for found in zip(*(t[clock] for t in turns), strict=True)]


def slope_of(seconds: list[float]) -> float:
    """Slope of a line through all points."""
    return statistics.linear_regression(range(len(seconds)), seconds).slope
