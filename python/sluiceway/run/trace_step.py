"""Reads one step from trace.json: the ranges on each lane, with their times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ORDER = ("loop", "device", "d2h", "decompress", "spill", "fetch", "host", "store", "h2d", "apply")
_STEP = re.compile(r"step( \d+)?")  # Name of a range that covers a whole step.


@dataclass(frozen=True)
class Range:
    """One range of a lane.

    Parameters
    ----------
    begin, seconds : float
        Begin within the step, and length, both in seconds and cut to the step.
    bytes : int
        Bytes that crossed a link or were processed; 0 if the trace has no count.
    depth : int
        Number of ranges on the same lane that contain this one.
    """

    name: str
    begin: float
    seconds: float
    bytes: int
    depth: int


@dataclass(frozen=True)
class Lane:
    """One row of the timeline: its ranges in the order in which they begin."""

    name: str
    ranges: list[Range]

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one range, other than a stall, is running."""
        outer = [r for r in self.ranges if r.depth == 0 and r.name != "stall"]
        busy, end = 0.0, 0.0
        for r in outer:
            busy += max(0.0, r.begin + r.seconds - max(end, r.begin))
            end = max(end, r.begin + r.seconds)
        return busy


@dataclass(frozen=True)
class StepTrace:
    """One step: its name, its length in seconds, its lanes, and how many steps the trace has."""

    name: str
    seconds: float
    lanes: list[Lane]
    steps: int

    @property
    def figures(self) -> dict[str, Any]:
        """Name and seconds of the step, with busy seconds, ranges and bytes for each lane."""
        lanes = {
            lane.name: {
                "busy_seconds": lane.busy_seconds,
                "ranges": len(lane.ranges),
                "bytes": sum(r.bytes for r in lane.ranges),
            }
            for lane in self.lanes
        }
        return {"name": self.name, "seconds": self.seconds, "lanes": lanes}


def read_step(path: Path, notes: list[str]) -> StepTrace | None:
    """Read a step of ordinary length from the middle of a trace; None if the trace has no step.

    The file is read twice, event by event, because it may have a million events.
    """
    if not path.exists():
        return None
    try:
        names, steps = _overview(path)
        if not steps:
            notes.append("trace.json has no step, so no timeline is drawn")
            return None
        chosen = _ordinary(steps)
        lanes = _lanes(path, chosen, names)
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"no timeline is drawn: cannot read trace.json ({type(error).__name__})")
        return None
    return StepTrace(chosen["name"], 1e-6 * chosen["dur"], lanes, len(steps))


def _events(path: Path, words: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the events of a file, which has one event per line or all events in one line.

    Parameters
    ----------
    words : tuple of str
        Lines without any of these words are skipped.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if words and not any(word in line for word in words):
                continue
            try:
                value = json.loads(line.strip().rstrip(","))
            except ValueError:  # The frame around the events, or an incomplete last line.
                continue
            if isinstance(value, dict):
                yield from value.get("traceEvents", [value])


def _overview(path: Path) -> tuple[dict[int, str], list[dict[str, Any]]]:
    names, steps = {}, []
    for event in _events(path, ('"step', '"thread_name"')):
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        elif event.get("ph") == "X" and _STEP.fullmatch(event["name"]):
            steps.append(event)
    return names, steps


def _ordinary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose the step of median length in the middle third: neither an early nor a slow step."""
    third = len(steps) // 3
    middle = steps[third : len(steps) - third]
    return sorted(middle, key=lambda event: event["dur"])[(len(middle) - 1) // 2]


def _lanes(path: Path, step: dict[str, Any], names: dict[int, str]) -> list[Lane]:
    begin, end = step["ts"], step["ts"] + step["dur"]
    found: dict[int, list[tuple[float, float, str, int]]] = {tid: [] for tid in names}
    for event in _events(path):
        if event.get("ph") != "X" or _STEP.fullmatch(event["name"]):
            continue
        first, last = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
        if first < last or (first == last and begin < first < end):
            count = event.get("args", {}).get("bytes", 0)
            found.setdefault(event["tid"], []).append((first, -last, event["name"], count))
    rows = {names.get(tid, f"row {tid}"): _nested(r, begin) for tid, r in found.items()}
    places = {name: place for place, name in enumerate(_ORDER)}
    order = sorted(rows, key=lambda name: places.get(name, len(_ORDER)))
    return [Lane(name, rows[name]) for name in order if rows[name] or name in _ORDER]


def _nested(ranges: list[tuple[float, float, str, int]], zero: float) -> list[Range]:
    """Sort ranges by begin, longer ones first, and count the ranges that contain each."""
    nested, around = [], []
    for begin, minus_end, name, count in sorted(ranges):
        end = -minus_end
        while around and around[-1] < end:
            around.pop()
        nested.append(Range(name, 1e-6 * (begin - zero), 1e-6 * (end - begin), count, len(around)))
        around.append(end)
    return nested
