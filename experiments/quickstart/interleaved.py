"""Let training runs take turns on one machine, so that a disturbance slows all of them alike.

Every run is a separate process, with its own model, optimizer, data position and generators. All
runs are alive at once, and one at a time makes steps. A run pauses after every few steps until its
next turn, so it has the same losses as the run on its own. The order of the runs changes from
round to round.

A figure of speed leaves out the first step of each turn: it starts with idle lanes and cold caches,
and the lanes of the previous run may still be at work.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sluiceway.run.run_folder import RunFolder

from experiments.harness import REPOSITORY
from experiments.quickstart.run_folder import as_override, clear

TURN_STEPS = 5  # Divides the steps of the demo, and the 60 between two evaluations of the config.
# Runs are forked from a process that has imported these and has not touched a card.
IMPORTED_ONCE = ["sluiceway.run.run", "transformers.models.llama.modeling_llama"]


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Names of mallopt's parameters in glibc's malloc.h.


def keep_freed_memory() -> None:
    """Let malloc keep freed memory, as the allocator of a card does.

    By default malloc may return the gradients of each step to the system and fault them in again.
    The amount depends on the accidental layout of the heap, so one process of a way could take
    several percent more time than the next.
    """
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, size in ((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 1 << 30)):
        if mallopt(parameter, size) != 1:
            raise RuntimeError(f"mallopt: glibc refused {size} bytes for parameter {parameter}")


class PausingFolder(RunFolder):
    """Run folder that calls `pause` with the step after each line of metrics."""

    pause: Callable[[int], None]

    def append(self, line: dict[str, Any]) -> None:
        """Write the line, then pause; the next step has not begun, so the pause is in no timing."""
        super().append(line)
        self.pause(line["step"])


def _train(
    config: Path, folder: Path, settings: list[str], turn_steps: int, turns: Connection
) -> None:
    """Train as `sluiceway train` does, and pause after each turn.

    A message to the conductor says whether the run is over, and how many processor seconds this
    process has used. The conductor's answer lets the run continue.
    """
    with folder.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(REPOSITORY)
    keep_freed_memory()

    from sluiceway.base.interrupt import Interrupt
    from sluiceway.config.file import load_config
    from sluiceway.config.schema import with_absolute_paths
    from sluiceway.run.run import Run

    checked = with_absolute_paths(load_config(config, settings))

    def pause(step: int) -> None:
        if step % turn_steps == 0 and step < checked.train.steps:
            turns.send((False, time.process_time()))
            turns.recv()

    with Interrupt() as interrupt, closing(PausingFolder.create(folder, checked)) as place:
        place.pause = pause
        Run(checked, place, interrupt).train()
    turns.send((True, time.process_time()))


@dataclass(frozen=True)
class Turn:
    """Seconds of one turn: wall clock, processor time of the run, and busy time of all cores."""

    clock: float
    own: float
    busy: float


class TurnTaker:
    """Run in a separate process that makes steps during its turns only.

    Starting it takes the run up to its first pause, which comes before the first step.
    """

    def __init__(self, config: Path, folder: Path, overrides: Mapping[str, object]) -> None:
        clear(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings = [f"{key}={as_override(value)}" for key, value in overrides.items()]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED_ONCE)
        self.is_over = False
        self._log = folder.with_suffix(".log")
        self._turns, theirs = context.Pipe()
        self._process = context.Process(
            target=_train,
            args=(config.absolute(), folder.absolute(), settings, TURN_STEPS, theirs),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self._own_seconds = self._wait()

    def take_turn(self) -> Turn:
        """Let the run make steps up to its next pause or its end."""
        began, busy, own = time.monotonic(), busy_seconds(), self._own_seconds
        self._turns.send(None)
        self._own_seconds = self._wait()
        clock = time.monotonic() - began
        return Turn(clock, self._own_seconds - own, busy_seconds() - busy)

    def kill(self) -> None:
        """End the process if it is still alive, at any point."""
        self._process.kill()
        self._process.join()

    def _wait(self) -> float:
        """Wait for a pause or for the end; return the processor time of the run so far."""
        try:
            self.is_over, seconds = self._turns.recv()
        except EOFError:
            self._process.join()
            told = self._log.read_text().splitlines()[-3:] if self._log.exists() else []
            code = self._process.exitcode
            sys.exit("\n".join([f"{self._log}: the run ended with exit code {code}:", *told]))
        if self.is_over:
            self._process.join()
        return seconds


def busy_seconds() -> float:
    """Return the seconds since boot that the cores this process may use were busy.

    The seconds of all cores are added up. Time that a hypervisor gave to other machines counts as
    busy.
    """
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in mine:
            user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def order_of(count: int, number: int) -> list[int]:
    """Return the order in which runs take turns in a round; every other round goes backwards.

    After each pair of rounds the order rotates, so a steady drift of the machine's speed favours no
    run.
    """
    rotated = [(place + number // 2) % count for place in range(count)]
    return rotated if number % 2 == 0 else rotated[::-1]


def others_cores(turns: list[Turn]) -> float:
    """Return how many cores other programs kept busy on average."""
    return max(0.0, sum(t.busy - t.own for t in turns) / sum(t.clock for t in turns))


def take_turns(
    config: Path,
    ways: Mapping[str, tuple[Path, Mapping[str, object]]],
    tell: Callable[[str], None] = print,
) -> list[float]:
    """Train every way to its end, in turns.

    Parameters
    ----------
    ways : mapping of str to tuple of Path and mapping
        Run folder of each way, and its overrides of the config.
    tell : callable
        Receives a line as each run starts and as each round ends.

    Returns
    -------
    list of float
        Cores that other programs kept busy in each round, on average.
    """
    runs: list[TurnTaker] = []
    loads: list[float] = []
    try:
        for name, (folder, overrides) in ways.items():
            tell(f"starts: {name}")
            runs.append(TurnTaker(config, folder, overrides))
        while not all(run.is_over for run in runs):
            order = order_of(len(runs), len(loads))
            turns = [runs[place].take_turn() for place in order if not runs[place].is_over]
            loads.append(others_cores(turns))
            seconds = sum(turn.clock for turn in turns)
            tell(f"round {len(loads)}: {seconds:.1f} s, others keep {loads[-1]:.2f} cores busy")
    finally:
        for run in runs:
            run.kill()
    return loads
