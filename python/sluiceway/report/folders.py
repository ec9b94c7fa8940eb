"""Reads run folders in any state: running, interrupted, killed, or with files missing."""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path
from typing import Any

import yaml

from sluiceway.base.json_text import finite
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.report.records import RunRecord
from sluiceway.report.trace import read_step
from sluiceway.run.run_folder import COMPARISON, CONFIG_FILE, RunFolder


def read_records(folders: list[Path]) -> list[RunRecord]:
    """Read every folder, each followed by the native run that it was compared with.

    Raises
    ------
    sluiceway.errors.IoError, sluiceway.errors.InvalidArgument
        See `write_report`.
    """
    runs: list[RunRecord] = []
    seen: set[Path] = set()
    names = _names(folders)
    for folder, name in zip(folders, names, strict=True):
        comparison = folder / COMPARISON
        for path, label in ((folder, name), (comparison, f"{name}/{COMPARISON}")):
            if path.resolve() in seen or (path is comparison and not _has_metrics(path)):
                continue
            seen.add(path.resolve())
            runs.append(_read(path, label))
    return runs


def _names(folders: list[Path]) -> list[str]:
    """Shortest endings of the paths that distinguish the folders."""
    parts = [folder.resolve().parts for folder in folders]

    def name(own: tuple[str, ...]) -> str:
        for length in range(1, len(own)):
            end = own[-length:]
            if all(other == own or other[-length:] != end for other in parts):
                return "/".join(end)
        return "/".join(own)

    return [name(own) for own in parts]


def _has_metrics(folder: Path) -> bool:
    path = RunFolder(folder).metrics_path
    return path.is_file() and path.stat().st_size > 0


def _read(path: Path, name: str) -> RunRecord:
    RunFolder.check(path)
    folder, notes = RunFolder(path), []
    running = _is_held(folder.metrics_path)
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
    native = RunFolder(path / COMPARISON).summary_path
    if "native" not in summary and native.is_file():  # Written before the run's own summary.
        summary["native"] = _object(native.read_bytes())
    status = "running" if running else summary.get("status", "stopped")
    if status == "stopped":
        notes.append("no summary of the last step: the process was killed")
    step = read_step(folder.trace_path, notes)
    return RunRecord(path, name, status, config, summary, lines, notes, step)


def _is_held(metrics: Path) -> bool:
    """Tell whether a process trains into the folder: it holds the lock that `RunFolder` takes."""
    with contextlib.suppress(FileNotFoundError, PermissionError), metrics.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # A file system without locks cannot tell.
            return False
    return False


def _config(path: Path) -> dict[str, Any]:
    """Read the config as plain YAML, without this version's schema, so that old runs work too."""
    try:
        tree = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where else ""
        raise InvalidArgument(f"{path}{line}: not YAML, expected a run's config") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not isinstance(tree, dict):
        raise InvalidArgument(f"{path}: has no keys, expected a run's config")
    return tree


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read the complete lines in order of steps; leave out and note lines that do not parse."""
    try:
        raw = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise _unreadable(path, error) from None
    *whole, last = raw.split(b"\n")
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
    path = folder.summary_path
    try:
        summary = _object(path.read_bytes()) if path.exists() else {}
    except OSError as error:
        raise _unreadable(path, error) from None
    if path.exists() and not summary:
        notes.append("summary.json does not parse and is left out")
    if summary and summary.get("steps") != last_step:
        notes.append(
            f"summary.json ends at step {summary.get('steps')}, metrics.jsonl at step {last_step}: "
            "figures come from the metrics"
        )
        lasting = ("engine", "codecs", "metrics", "precision", "parameters", "data", "versions",
                   "machine", "commit", "config_hash", "first_eval_loss", "native")  # fmt: skip
        summary = {key: summary[key] for key in lasting if key in summary}
    return summary


def _object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object, with None for NaN and infinities; {} if `text` is no object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return finite(value) if isinstance(value, dict) else {}


def _unreadable(path: Path, error: OSError) -> IoError:
    return IoError(f"{path}: cannot be read, {error.strerror}", error.errno, str(path))
