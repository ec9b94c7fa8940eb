"""Run the demo's ways through the command line, and runs that are killed and resumed."""

from __future__ import annotations

import functools
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

from experiments.kill_resume.run import Running, kill_often, write_config
from experiments.quickstart.demo_ways import WAYS
from experiments.same_bits.checkouts import Side
from experiments.same_bits.compare import Left, of_command

LINK_GBPS = 0.5  # Bits do not depend on the rate, but it makes the lanes wait.
DEMO_STEPS, KILLED_STEPS = 24, 32
SHORT = {
    "train.steps": DEMO_STEPS,
    "train.eval_every": 12,
    "train.eval_sequences": 8,
    "train.save_every": 12,
    "device.pin": "false",
}
KINDS = ("native", "subspace")


def run_demo(way: str, side: Side, folder: Path) -> Left:
    """Run a few steps of one way of the demo, by the side's own config."""
    name, overrides = WAYS[way]
    path, log = folder / name, folder / f"{name}.log"
    try:
        side.train(path, {**overrides, **SHORT}, LINK_GBPS, log)
    except subprocess.CalledProcessError as error:
        return of_command(path, f"ended with {error.returncode}: {log.read_text()[-300:]}")
    return of_command(path)


def run_whole_or_killed(kind: str, kills: int, side: Side, folder: Path) -> Left:
    """Run kill_resume's config undisturbed, or kill and resume it."""
    path = folder / f"{kind}_{kills}_kills"
    path.parent.mkdir(parents=True, exist_ok=True)
    config = write_config(path.with_suffix(".yaml"), {"kind": kind}, KILLED_STEPS)

    def start(*arguments: object) -> Running:
        return Running(
            [str(a) for a in arguments], str(side.python), side.checkout, side.environment
        )

    try:
        killed = kill_often(start, config, path, kills, 0.3, random.Random(0))
    except RuntimeError as error:
        return of_command(path, str(error))
    except ProcessLookupError:
        return of_command(path, "a command failed before it was killed")
    return of_command(path, "it ended before it was killed" if kills and not killed else None)


def command_runs() -> dict[str, Callable[[Side, Path], Left]]:
    """Return every run by its name."""
    runs = {f"demo: {way}": functools.partial(run_demo, way) for way in WAYS}
    for kind in KINDS:
        runs[f"{kind}, uninterrupted"] = functools.partial(run_whole_or_killed, kind, 0)
        runs[f"{kind}, killed and resumed"] = functools.partial(run_whole_or_killed, kind, 2)
    return runs
