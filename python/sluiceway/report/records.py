"""Figures and curves of one run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from sluiceway.report.curve import Curve
from sluiceway.report.trace import StepTrace

LINKS = ("d2h", "h2d", "disk_read", "disk_written")
TIERS = ("device", "host", "pinned", "disk", "process")
_OF_SEVERAL = " (root mean square)"
_SHARED = ("bytes", "peak_bytes", "eval_bytes")  # Objects of a line whose keys engines share.


@dataclass(frozen=True)
class RunRecord:
    """One run, read from its folder.

    Parameters
    ----------
    name : str
        Distinguishes the run from the others on the page.
    status : str
        "running", "done", "interrupted", "diverged", "failed", or "stopped" if the end was not
        recorded.
    config : dict
        The resolved config.
    summary : dict
        Contents of summary.json, without its figures if it is older than the last step.
    lines : list of dict
        Lines of metrics.jsonl by step; numbers that are not finite are None.
    notes : list of str
        Warnings that the reader needs before trusting the page.
    step : StepTrace or None
        One step of the trace.
    """

    folder: Path
    name: str
    status: str
    config: dict[str, Any]
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    notes: list[str]
    step: StepTrace | None

    def setting(self, section: str, key: str) -> Any:
        """Value in the config; None if it is missing."""
        keys = self.config.get(section)
        return keys.get(key) if isinstance(keys, dict) else None

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Counts, losses, times, bytes and peaks, with the keys and units of summary.json."""
        figures = {
            "steps": self.lines[-1]["step"],
            "tokens": sum(_number(line, "tokens") or 0 for line in self.lines),
            "skipped_steps": sum(_number(line, "skipped") or 0 for line in self.lines),
            "seconds": sum(_number(line, "seconds") or 0.0 for line in self.lines),
            "first_eval_loss": _number(self.lines[0], "eval_loss"),
            "final_eval_loss": next(
                (
                    loss
                    for line in reversed(self.lines)
                    if (loss := _number(line, "eval_loss")) is not None
                ),
                None,
            ),
        }
        if "median_step_seconds" not in self.summary:
            # This import needs torch, and a report on a finished run does not.
            from sluiceway.run.step_figures import step_figures

            figures |= step_figures([_complete(line) for line in self.lines])
        known = (*figures, "final_loss", "median_step_seconds", "mean_step_seconds",
                 "tokens_per_second", "stall_share", "data_share", "learn_seconds",
                 "bytes_per_step", "peak_bytes", "native_ratio", "disk")  # fmt: skip
        figures |= {key: self.summary[key] for key in known if key in self.summary}
        mine = figures.get("median_step_seconds")
        theirs = (self.summary.get("native") or {}).get("median_step_seconds")
        if figures.get("native_ratio") is None and mine is not None and theirs:
            figures["native_ratio"] = mine / theirs
        return figures

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Curves that have a point, by name, with all points."""
        curves = {name: self._curve(value) for name, value in _CURVES.items()}
        curves["skipped_so_far"] = curves.pop("skipped").summed()
        curves |= {
            name: self._curve(_where_measured(*name.split(".", 1))) for name in self.own_metrics
        }
        return {name: curve for name, curve in curves.items() if curve.steps}

    @cached_property
    def own_metrics(self) -> dict[str, str]:
        """Map the metrics of this engine alone, `section.field` in its lines, to their titles.

        A list of numbers, for instance one per direction, is shown as its root mean square.
        """
        names = {
            f"{section}.{field}": _OF_SEVERAL if isinstance(value, list) else ""
            for line in self.lines
            for section, fields in line.items()
            if isinstance(fields, dict) and section not in _SHARED
            for field, value in fields.items()
        }
        said = self.summary.get("metrics")
        titles = said if isinstance(said, dict) else {}
        return {
            name: str(titles.get(name, name.replace(".", ": ").replace("_", " "))) + means
            for name, means in names.items()
        }

    @cached_property
    def _so_far(self) -> list[tuple[int, float]]:
        """Tokens and seconds up to the end of each line."""
        tokens = accumulate(_number(line, "tokens") or 0 for line in self.lines)
        seconds = accumulate(_number(line, "seconds") or 0.0 for line in self.lines)
        return list(zip(tokens, seconds, strict=True))

    def _curve(self, value: Callable[[dict[str, Any]], Any]) -> Curve:
        curve = Curve([], [], [], [])
        for line, (tokens, seconds) in zip(self.lines, self._so_far, strict=True):
            found = value(line)
            if found is not _ABSENT:
                curve.add(line["step"], tokens, seconds, found)
        return curve


_ABSENT = object()


def _number(line: dict[str, Any], *keys: str) -> float | int | None:
    value: Any = line
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _field(*keys: str) -> Callable[[dict[str, Any]], Any]:
    """Make a function that reads a number of a line; None where the line has null."""

    def value(line: dict[str, Any]) -> Any:
        holder: Any = line
        for key in keys:
            if not isinstance(holder, dict) or key not in holder:
                return _ABSENT
            holder = holder[key]
        return _number(line, *keys)

    return value


def _where_measured(section: str, field: str) -> Callable[[dict[str, Any]], Any]:
    """Make a function that reads a number, or the root mean square of a list, if a line has it."""

    def value(line: dict[str, Any]) -> Any:
        fields = line.get(section)
        held = fields.get(field) if isinstance(fields, dict) else None
        several = held if isinstance(held, list) else [held]
        numbers = [_number({field: one}, field) for one in several]
        if not numbers or None in numbers:
            return _ABSENT
        mean = math.hypot(*numbers) / math.sqrt(len(numbers))
        return mean if isinstance(held, list) else held

    return value


def _per_second(key: str) -> Callable[[dict[str, Any]], Any]:
    def value(line: dict[str, Any]) -> Any:
        part, seconds = _number(line, key), _number(line, "seconds")
        return _ABSENT if part is None or not seconds else part / seconds

    return value


_CURVES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "loss": _field("loss"),
    "eval_loss": _field("eval_loss"),
    "lr": _field("lr"),
    "grad_norm": _field("grad_norm"),
    "skipped": _field("skipped"),
    "seconds": _field("seconds"),
    "tokens_per_second": _per_second("tokens"),
    "stall_share": _per_second("stall_seconds"),
    "data_share": _per_second("data_seconds"),
    **{link: _field("bytes", link) for link in LINKS},
}


def _complete(line: dict[str, Any]) -> dict[str, Any]:
    """Fill in the numbers that `step_figures` needs."""
    keys = ("seconds", "loss", "tokens", "stall_seconds", "data_seconds", "learn_seconds")
    numbers = {key: _number(line, key) for key in keys}
    numbers["tokens"] = numbers["tokens"] or 0
    for group in ("bytes", "peak_bytes"):
        part = line.get(group) if isinstance(line.get(group), dict) else {}
        numbers[group] = {key: _number(part, key) or 0 for key in part}
    return numbers
