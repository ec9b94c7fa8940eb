"""Kill a run at moments drawn at random, resume it each time, and compare the final weights."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_lines(folder: Path) -> list[dict]:
    """Return every whole line of a run's metrics."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for_step(folder: Path, step: int, seconds: float = 60.0) -> None:
    """Wait until a run has written the line of a step."""
    deadline = time.monotonic() + seconds
    while not any(line["step"] >= step for line in read_lines(folder)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder}: no step {step} within {seconds} s")
        time.sleep(0.01)


def weights_hash(folder: Path) -> str:
    """Hash the last save's weights, byte for byte."""
    return hashlib.sha256((folder / "checkpoint" / "model.safetensors").read_bytes()).hexdigest()


def loss_lines(folder: Path) -> list[tuple]:
    """Step and losses of each line of metrics; times are left out, as they differ between runs."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line.get("loss"), line.get("eval_loss")) for line in lines]


def _step_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return max((json.loads(x)["step"] for x in lines if x.endswith("\n")), default=-1)


def _wait(happened: Callable[[], bool], command: Any, seconds: float = 600.0) -> None:
    """Wait until `happened()` is true or the command ends by itself."""
    deadline = time.monotonic() + seconds
    while not happened() and command.is_running():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the awaited event did not happen within {seconds} s")
        time.sleep(0.001)


def _moment(folder: Path, command: Any, kind: str, first: int, span: float) -> None:
    """Wait for a moment of the given kind, then for up to `span` seconds at random."""
    saving = folder / "checkpoint.new"
    reading_back = saving / "state.json"
    if kind == "stepping":
        _wait(lambda: _step_of(folder) > first, command)
    elif kind == "saving":
        _wait(lambda: _step_of(folder) > first and saving.exists(), command)
        span = min(span, 0.01)
    elif kind == "reading back":
        _wait(lambda: _step_of(folder) > first and reading_back.exists(), command)
        span = min(span, 0.005)
    time.sleep(span)


def kill_at_step(
    sluiceway: Any, config: Path, folder: Path, step: int, *more: object, **options: Any
) -> int:
    """Train, and SIGKILL once metrics have a line of `step`; return the last recorded step."""
    command = sluiceway.start("train", config, "--out", folder, *more, **options)
    wait_for_step(folder, step)
    command.signal(signal.SIGKILL)
    command.wait()
    return read_lines(folder)[-1]["step"]


def _clear_unless(folder: Path, names: tuple[str, ...]) -> None:
    if not any((folder / name).exists() for name in names):
        shutil.rmtree(folder, ignore_errors=True)


def _go_on(start: Callable[..., Any], config: Path, folder: Path) -> Any:
    return start("resume", folder) if folder.exists() else start("train", config, "--out", folder)


def kill_often(
    start: Callable[..., Any],
    config: Path,
    folder: Path,
    kills: int,
    seconds: float,
    generator: random.Random,
    resumable: tuple[str, ...] = ("checkpoint", "checkpoint.old"),
) -> list[dict[str, Any]]:
    """Train, SIGKILL at random moments, resume after each kill, and finally let the run finish.

    Of six kills, one comes at any moment after the start of the command, three after its first
    step, one while it writes a save, and one while it syncs a written save, reads it back and
    moves it into place. A run killed before it has anything to resume from begins again.

    Parameters
    ----------
    start : callable
        Starts a command; the result has `pid`, `is_running()` and `wait()`.
    seconds : float
        Longest time between the chosen moment and the kill. It must exceed one interval between
        saves, or the run may never make progress.
    resumable : tuple of str
        A run can resume from a folder that has one of these.

    Returns
    -------
    list of dict
        Kind of each kill, and the step that the run had reached.
    """
    record: list[dict[str, Any]] = []
    kinds = ("stepping", "saving", "any", "reading back", "stepping", "stepping")
    while len(record) < kills:
        _clear_unless(folder, resumable)
        first, kind = _step_of(folder), kinds[len(record) % len(kinds)]
        command = _go_on(start, config, folder)
        _moment(folder, command, kind, first, generator.random() * seconds)
        os.kill(command.pid, signal.SIGKILL)
        code = command.wait().code
        if code == 0:
            break  # The run was done before the kill came.
        saving = (folder / "checkpoint.new").exists()
        record.append({"kind": kind, "step": _step_of(folder), "in_save": saving, "code": code})
    _clear_unless(folder, resumable)
    done = _go_on(start, config, folder).wait()
    if done.code != 0:
        raise RuntimeError(f"resume ended with {done.code}: {done.err}")
    return record
