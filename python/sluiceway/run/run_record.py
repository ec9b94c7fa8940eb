"""Reads run folders in any state: running, interrupted, killed, or with files missing."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sluiceway.base.json_text import finite
from sluiceway.config.file import flattened
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.run.curve import Curve, rounded
from sluiceway.run.run_folder import COMPARISON, CONFIG_FILE, RunFolder
from sluiceway.run.step_figures import step_figures
from sluiceway.run.trace_step import StepTrace, read_step

# Entries of a summary that stay true when the run goes on.
_LASTING = ("engine", "codecs", "metrics", "precision", "parameters", "data", "versions",
            "machine", "commit", "config_hash", "first_eval_loss", "native")  # fmt: skip
_SUMMED_UP = ("final_loss", "median_step_seconds", "mean_step_seconds", "tokens_per_second",
              "stall_share", "data_share", "learn_seconds", "bytes_per_step", "peak_bytes",
              "native_ratio", "disk")  # fmt: skip
LINKS = ("d2h", "h2d", "disk_read", "disk_written")
TIERS = ("device", "host", "pinned", "disk", "process")
_CURVES = ("loss", "eval_loss", "lr", "grad_norm", "skipped", "seconds")
_RATES = {"tokens_per_second": "tokens", "stall_share": "stall_seconds",
          "data_share": "data_seconds"}  # fmt: skip
_SHARED = ("bytes", "peak_bytes", "eval_bytes")  # Objects of a line whose keys engines share.


@dataclass(frozen=True)
class RunRecord:
    """One run, read from its folder."""

    folder: Path
    name: str  # Distinguishes the run from others that were read with it.
    status: str  # Of the summary, or running, or stopped if the end was not recorded.
    config: dict[str, Any]  # Resolved.
    summary: dict[str, Any]  # Without its figures if it is older than the last step.
    lines: list[dict[str, Any]]  # By step; numbers that are not finite are None.
    notes: list[str]  # Warnings that a reader needs before trusting the figures.
    step: StepTrace | None

    def setting(self, section: str, key: str) -> Any:
        """Return a value of the config; None if it is missing."""
        keys = self.config.get(section)
        return keys.get(key) if isinstance(keys, dict) else None

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Counts, losses, times, bytes and peaks, with the keys and units of summary.json."""
        lines, summary = self.lines, self.summary
        held_out = [v for line in lines if (v := _number(line.get("eval_loss"))) is not None]
        figures = {
            "steps": lines[-1]["step"],
            "tokens": sum(_number(line.get("tokens")) or 0 for line in lines),
            "skipped_steps": sum(_number(line.get("skipped")) or 0 for line in lines),
            "seconds": sum(_number(line.get("seconds")) or 0.0 for line in lines),
            "first_eval_loss": _number(lines[0].get("eval_loss")),
            "final_eval_loss": held_out[-1] if held_out else None,
        }
        if "median_step_seconds" not in summary:
            figures |= step_figures([_complete(line) for line in lines])
        figures |= {key: summary[key] for key in (*figures, *_SUMMED_UP) if key in summary}
        mine = figures.get("median_step_seconds")
        theirs = (summary.get("native") or {}).get("median_step_seconds")
        if figures.get("native_ratio") is None and mine is not None and theirs:
            figures["native_ratio"] = mine / theirs
        return figures

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Curves that have a point, by name; metrics of one engine alone as `section.field`."""
        columns: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        for place, line in enumerate(self.lines):
            for name, value in _values(line).items():
                columns[name][0].append(place)
                columns[name][1].append(value)
        steps = np.array([line["step"] for line in self.lines])
        tokens, seconds = (
            np.cumsum([_number(line.get(key)) or 0 for line in self.lines])
            for key in ("tokens", "seconds")
        )
        curves = {
            name: Curve(steps[places], tokens[places], seconds[places], np.array(values, float))
            for name, (places, values) in columns.items()
        }
        if (skipped := curves.pop("skipped", None)) is not None:
            so_far = np.cumsum(np.nan_to_num(skipped.value))
            curves["skipped_so_far"] = skipped._replace(value=so_far)
        return curves

    @cached_property
    def own_metrics(self) -> dict[str, str]:
        """Map the metrics of this engine alone, `section.field` in its lines, to their titles."""
        said = self.summary.get("metrics")
        titles = said if isinstance(said, dict) else {}
        lists = {
            name
            for line in self.lines
            for name, value in flattened(line).items()
            if isinstance(value, list)
        }
        return {
            name: str(titles.get(name, name.replace(".", ": ").replace("_", " ")))
            + (" (root mean square)" if name in lists else "")
            for name in self.curves
            if "." in name
        }

    def plain(self, points: int) -> dict[str, Any]:
        """Return the record as values for JSON, with at most `points` points of each curve."""
        curves: dict[str, dict[str, list]] = {}
        for name, curve in self.curves.items():
            thin, of_loss = curve.thinned(points), name in ("loss", "eval_loss")
            columns = ("step", "tokens", "seconds", "value") if of_loss else ("step", "value")
            curves[name] = {column: rounded(getattr(thin, column)) for column in columns}
        return {
            "name": self.name,
            "folder": str(self.folder),
            "status": self.status,
            "notes": self.notes,
            "figures": self.figures,
            "config": self.config,
            "summary": self.summary,
            "curves": curves,
            "step": self.step.figures if self.step else None,
        }


def read_records(folders: list[Path]) -> list[RunRecord]:
    """Read every folder, each followed by the native run that it was compared with.

    Raises
    ------
    sluiceway.errors.IoError
        A folder does not exist, or a file cannot be read.
    sluiceway.errors.InvalidArgument
        A folder has no metrics yet, or its config is not YAML.
    """
    runs: dict[Path, RunRecord] = {}
    resolved = [folder.resolve() for folder in folders]
    for folder, own in zip(folders, resolved, strict=True):
        name = _short_name(own, resolved)
        for path, label in ((folder, name), (folder / COMPARISON, f"{name}/{COMPARISON}")):
            if path.resolve() not in runs and (path is folder or _has_metrics(path)):
                runs[path.resolve()] = _read(path, label)
    return list(runs.values())


def _short_name(own: Path, folders: list[Path]) -> str:
    """Return the shortest ending of a path that distinguishes it from the other folders."""
    for length in range(1, len(own.parts)):
        end = own.parts[-length:]
        if all(other == own or other.parts[-length:] != end for other in folders):
            return "/".join(end)
    return str(own)


def _has_metrics(folder: Path) -> bool:
    path = RunFolder(folder).metrics_path
    return path.is_file() and path.stat().st_size > 0


def _read(path: Path, name: str) -> RunRecord:
    RunFolder.check(path)
    folder, notes = RunFolder(path), []
    running = folder.is_held()
    config = _config(path / CONFIG_FILE)
    lines = _lines(folder.metrics_path, notes)
    if not lines:
        comparison = path / COMPARISON
        hint = f"try {comparison}" if _has_metrics(comparison) else "wait for the first step"
        raise InvalidArgument(
            f"{path}: metrics.jsonl has no {'whole ' if notes else ''}line, expected at least "
            f"one; {hint}"
        )
    summary = _summary(folder, lines[-1]["step"], notes)
    status = "running" if running else summary.get("status", "stopped")
    if status == "stopped":
        notes.append("no summary of the last step: the process was killed")
    step = read_step(folder.trace_path, notes)
    run = RunRecord(path, name, status, config, summary, lines, notes, step)
    if status != "done":
        of = f" of {steps}" if (steps := run.setting("train", "steps")) else ""
        notes.append(f"{status}, after step {lines[-1]['step']}{of}")
    gaps = [line["step"] for line in lines if "loss" in line and _number(line["loss"]) is None]
    if gaps:
        some = ", ".join(map(str, gaps[:5])) + (", ..." if len(gaps) > 5 else "")
        notes.append(f"the loss is not finite in {len(gaps)} steps: {some}")
    return run


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _values(line: dict[str, Any]) -> dict[str, float]:
    """Return the points of curves that a line has; NaN where it has null for a number.

    A list of numbers, for instance one per direction, counts as its root mean square.
    """
    found = {key: line[key] for key in _CURVES if key in line}
    links = line.get("bytes") if isinstance(line.get("bytes"), dict) else {}
    found |= {link: links[link] for link in LINKS if link in links}
    points = {key: math.nan if _number(v) is None else v for key, v in found.items()}
    for name, key in _RATES.items():
        part, seconds = _number(line.get(key)), _number(line.get("seconds"))
        if part is not None and seconds:
            points[name] = part / seconds
    own = {key: v for key, v in line.items() if isinstance(v, dict) and key not in _SHARED}
    for name, value in flattened(own).items():
        numbers = [_number(one) for one in value] if isinstance(value, list) else None
        if numbers and None not in numbers:
            points[name] = math.hypot(*numbers) / math.sqrt(len(numbers))
        elif _number(value) is not None:
            points[name] = value
    return points


def _complete(line: dict[str, Any]) -> dict[str, Any]:
    """Fill in the numbers that `step_figures` needs."""
    keys = ("seconds", "loss", "stall_seconds", "data_seconds", "learn_seconds")
    numbers = {key: _number(line.get(key)) for key in keys}
    numbers["tokens"] = _number(line.get("tokens")) or 0
    for group in ("bytes", "peak_bytes"):
        part = line.get(group) if isinstance(line.get(group), dict) else {}
        numbers[group] = {key: _number(v) or 0 for key, v in part.items()}
    return numbers


def _config(path: Path) -> dict[str, Any]:
    """Read the config as plain YAML, without this version's schema, so that old runs work too."""
    try:
        tree = yaml.safe_load(_bytes(path))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where else ""
        raise InvalidArgument(f"{path}{line}: not YAML, expected a run's config") from None
    if not isinstance(tree, dict):
        raise InvalidArgument(f"{path}: has no keys, expected a run's config")
    return tree


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read the complete lines in order of steps; leave out and note lines that do not parse."""
    *whole, last = _bytes(path).split(b"\n")
    if last:
        notes.append(
            f"the last line of metrics.jsonl is half-written ({len(last)} bytes) and left out"
        )
    by_step: dict[int, dict[str, Any]] = {}
    bad, twice = [], 0
    for place, text in enumerate(whole, start=1):
        line = _object(text)
        step = line.get("step")
        if not isinstance(step, int) or step < 0:
            bad.append(place)
            continue
        twice += step in by_step
        by_step[step] = line
    if bad:
        some = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        notes.append(f"metrics.jsonl: left out {len(bad)} lines that are not metrics: line {some}")
    if twice:
        notes.append(f"metrics.jsonl: {twice} steps occur twice, the later line counts")
    return [by_step[step] for step in sorted(by_step)]


def _summary(folder: RunFolder, last_step: int, notes: list[str]) -> dict[str, Any]:
    """Read the summary; from one older than the last step, only what never changes in a run."""
    summary = _object(_bytes(folder.summary_path))
    if folder.summary_path.exists() and not summary:
        notes.append("summary.json does not parse and is left out")
    if summary and summary.get("steps") != last_step:
        notes.append(
            f"summary.json ends at step {summary.get('steps')}, metrics.jsonl at step {last_step}: "
            "figures come from the metrics"
        )
        summary = {key: summary[key] for key in _LASTING if key in summary}
    native = RunFolder(folder.path / COMPARISON).summary_path
    if "native" not in summary and native.is_file():  # Written before the run's own summary.
        summary["native"] = _object(_bytes(native))
    return summary


def _object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object, with None for NaN and infinities; {} if `text` is no object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return finite(value) if isinstance(value, dict) else {}


def _bytes(path: Path) -> bytes:
    """Return the content of a file; nothing if there is no file."""
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise IoError(f"{path}: cannot be read, {error.strerror}", error.errno, str(path)) from None
