"""Kill a run at moments drawn at random, resume it each time, and compare the final weights."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def weights_hash(folder: Path) -> str:
    """Of the last save's weights, byte for byte."""
    return hashlib.sha256((folder / "checkpoint" / "model.safetensors").read_bytes()).hexdigest()


def loss_lines(folder: Path) -> list[tuple]:
    """Step and losses of every line of metrics; times differ between runs, these may not."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line.get("loss"), line.get("eval_loss")) for line in lines]


def _step_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return max((json.loads(x)["step"] for x in lines if x.endswith("\n")), default=-1)


def _wait(happened: Callable[[], bool], command: Any, seconds: float = 600.0) -> None:
    """Until something happened, or the command has ended by itself."""
    deadline = time.monotonic() + seconds
    while not happened() and command.is_running():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {seconds} s")
        time.sleep(0.001)


def _moment(folder: Path, command: Any, kind: str, first: int, span: float) -> None:
    """Wait for a moment of the kind asked for, `span` a random number of seconds."""
    saving = folder / "checkpoint.new"
    if kind == "stepping":
        _wait(lambda: _step_of(folder) > first, command)
    elif kind == "saving":
        _wait(lambda: _step_of(folder) > first and saving.exists(), command)
        span = min(span, 0.01)
    time.sleep(span)


def kill_often(
    start: Callable[..., Any],
    config: Path,
    folder: Path,
    kills: int,
    seconds: float,
    generator: random.Random,
) -> list[dict[str, Any]]:
    """Train, SIGKILL at a random moment, resume, and so on; then let it finish.

    Of five kills one comes at any moment after the command was started, three after its first
    step, and one while a save is being written.

    Parameters
    ----------
    start : callable
        Starts a command; the result has `pid`, `is_running()` and `wait()`.
    seconds : float
        A kill comes up to this long after the moment that is waited for; more than one interval
        between saves, or the run may never get on.

    Returns
    -------
    list of dict
        For each kill of which kind it was, and the step that was reached.
    """
    record: list[dict[str, Any]] = []
    kinds = ("stepping", "saving", "any", "stepping", "stepping")
    while len(record) < kills:
        again = (folder / "config.yaml").exists()
        first, kind = _step_of(folder), kinds[len(record) % len(kinds)]
        command = start("resume", folder) if again else start("train", config, "--out", folder)
        _moment(folder, command, kind, first, generator.random() * seconds)
        os.kill(command.pid, signal.SIGKILL)
        code = command.wait().code
        if code == 0:
            break  # It was done before the kill came.
        saving = (folder / "checkpoint.new").exists() or (folder / "checkpoint.old").exists()
        record.append({"kind": kind, "step": _step_of(folder), "in_save": saving, "code": code})
    again = (folder / "config.yaml").exists()
    done = (start("resume", folder) if again else start("train", config, "--out", folder)).wait()
    if done.code != 0:
        raise RuntimeError(f"resume ended with {done.code}: {done.err}")
    return record
