"""Compare a step of streamed weights with its bounds, and with weights that stay on the device.

    python -m experiments.zo.streaming            # into streaming.json
    python -m experiments.zo.streaming --once     # a small model for seconds, which writes nothing
    python -m experiments.zo.streaming --table    # prints the tables of README.md

The device is one core of the host, its lanes have another core, and the link is throttled, so times
are those of a throttled link. Two things bound a step: `link`, the time that its bytes take at that
rate, and `compute`, the same steps by the same engine with every weight resident, so they perturb
and replay as much and nothing crosses. A way is a mode and a rate by link / compute. A turn of a
way is a few steps after a base, and a round has a turn of each way: ratios are taken within one
round.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sluiceway as sw
import torch
from sluiceway import _core
from sluiceway.base.side_thread import run_aside
from sluiceway.engines.zo import WriteBackSave

from experiments.harness import write_rows
from experiments.same_bits.checkouts import machine
from experiments.step.block_models import Case
from experiments.zo.streaming_table import PENDING, PREFETCH, ROUND, SAVING, tables

RESULTS = Path(__file__).with_name("streaming.json")
LR = 1e-7
_ARENAS, _MMAP_ABOVE, _TRIM_ABOVE = -8, -3, -1  # Parameters of mallopt, from malloc.h.


@dataclass(frozen=True)
class Way:
    """A mode, and the rate of its link.

    Parameters
    ----------
    mode : str or None
        log or write_back; or write_back with a narrow wire, such as write_back-fp8, whose resident
        weights are masters all the same. None: weights stay on the device (zeroth order in memory).
    ratio : float or None
        Seconds of the link divided by those of computing; None: nothing crosses; 0: not throttled.
    """

    mode: str | None
    ratio: float | None = None

    @property
    def has_images(self) -> bool:
        """Tell whether images of another type cross, so that losses use other weights."""
        return self.ratio is not None and "-" in (self.mode or "")

    def options(self) -> dict[str, str]:
        """Options of the optimizer."""
        mode, _, wire = (self.mode or "").partition("-")
        return {"mode": mode} | ({"wire": wire} if self.has_images else {})

    @property
    def key(self) -> dict[str, Any]:
        """Values that identify a row of results."""
        return {"mode": self.mode, "ratio": self.ratio}


class Runner:
    """A model of its own, and its optimizer.

    Parameters
    ----------
    case : Case
    way : Way
    gbps : float or None
        Rate of the link, each way.
    cores : tuple of int
        Core of the device, and core of the lanes.
    blocks : int, optional
        Blocks of the model; None: as many as its shape has.
    options : dict
        More options of the optimizer.
    """

    def __init__(
        self,
        case: Case,
        way: Way,
        gbps: float | None,
        cores: tuple[int, int],
        blocks: int | None = None,
        **options: Any,
    ) -> None:
        self.way, self.gbps, self._cores = way, gbps, cores
        self.model = model = case.build(blocks or case.layers)
        self._loss, self._ids = sw.ChunkedLoss(model), case.batch_on(torch.device("cpu"))
        if way.mode is not None:
            options |= {"tier": "host", "_pin": cores} | way.options()
            options |= {"resident": matrix_bytes(model)} if way.ratio is None else {}
            options |= {"link": sw.Link(gbps, gbps)} if gbps else {}
        self.opt = sw.ZoSgd(model, lr=LR, device="host", **options)
        self.measured_us = 0.0  # Time at which the last loss of the step was known.
        self.first = self.step()

    def step(self) -> dict[str, float]:
        """Time a step, and count the bytes that cross meanwhile."""
        began, used = time.perf_counter(), time.process_time()
        loss = self.opt.step(self._closure).item()
        seconds, used = time.perf_counter() - began, time.process_time() - used
        told = self.opt.stats()
        crossed = told.get("bytes", {"h2d": 0, "d2h": 0})
        return {
            "loss": loss, "seconds": seconds, "processor_seconds": used,
            "stall_seconds": told.get("stall_seconds", 0.0),
            "h2d": crossed["h2d"], "d2h": crossed["d2h"],
        }  # fmt: skip

    def _closure(self) -> torch.Tensor:
        loss = self._loss(input_ids=self._ids, labels=self._ids, use_cache=False)
        self.measured_us = _core.now_us()
        return loss

    def back_to_base(self) -> None:
        """Write a new base so that no step is pending, for modes that replay pending steps."""
        if self.way.mode == "log":
            self.opt.rollback(0)

    def turn(self, steps: int) -> dict[str, list[float]]:
        """Return the steps after a base but the first, whose weights arrived while others ran."""
        self.back_to_base()
        return columns([self.step() for _ in range(1 + steps)][1:])

    def turn_beside_save(self, steps: int) -> dict[str, Any]:
        """Take a turn, and then steps while a save is written, until it is finished."""
        plain = self.turn(steps)["seconds"]
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.closing(WriteBackSave(self.model, self.opt)) as begun,
        ):
            write = partial(begun.write, Path(folder))
            writing, beside = run_aside("save", write, self._cores[1]), [self.step()]
            while not writing.done():
                beside.append(self.step())
            writing.result()
        return {"plain_seconds": plain, **columns(beside)}


class Sitting:
    """Session of all measurements on one model.

    Parameters
    ----------
    args : argparse.Namespace
    cores : tuple of int
        Core of the device, and core of the lanes.
    """

    def __init__(self, args: argparse.Namespace, cores: tuple[int, int]) -> None:
        self._args, self._cores = args, cores
        self._case = Case(args.shape, args.tokens, False, args.tokens, torch.bfloat16)
        # By mode: seconds of computing, which set the rates, and bytes that cross in a step in the
        # direction with more bytes.
        self.compute: dict[str, float] = {}
        self.crossing: dict[str, int] = {}

    def about(self) -> dict[str, Any]:
        """Values that all rows have in common."""
        args = self._args
        return {
            "machine": machine(), "cores": self._cores, "shape": args.shape,
            "tokens": args.tokens, "dtype": "bf16", "layers": args.blocks or self._case.layers,
            "crossing_bytes": self.crossing, "compute_at_first": self.compute,
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row as soon as it is measured."""
        runners = self._runners()
        for number in range(self._args.rounds):
            first = number % len(runners)
            for runner in runners[first:] + runners[:first]:
                yield self._row(ROUND, runner, number, runner.turn(self._args.steps))
        for number in range(self._args.pending_rounds):
            for runner in (r for r in runners if r.way.mode == "log"):
                yield self._row(PENDING, runner, number, runner.turn(self._args.pending))
        for number in range(self._args.pending_rounds):
            for runner in (r for r in runners if (r.way.mode or "").startswith("write_back")):
                found = runner.turn_beside_save(self._args.steps)
                yield self._row(SAVING, runner, number, found)
        for runner in runners:
            runner.opt.close()
        for way, gbps in [(r.way, r.gbps) for r in runners if r.gbps]:
            yield {**way.key, "kind": PREFETCH, "gbps": gbps, **self._ahead(way, gbps)}

    def _row(self, kind: str, runner: Runner, number: int, found: dict) -> dict[str, Any]:
        return {**runner.way.key, "kind": kind, "round": number, "gbps": runner.gbps, **found}

    def _runners(self) -> list[Runner]:
        """Make one runner for each way; those with a link come after computing has been timed."""
        ways = [Way(None), *(Way(mode) for mode in self._args.modes)]
        found = [self._runner(way, None) for way in ways]
        for resident in found[1:]:
            mode = resident.way.mode
            resident.turn(1)
            seconds = statistics.median(resident.turn(self._args.steps)["seconds"])
            self.compute[mode], self.crossing[mode] = seconds, self._crossing(mode)
            for ratio in self._args.ratios:
                gbps = self.crossing[mode] / (ratio * seconds) / 1e9
                found.append(self._runner(Way(mode, ratio), gbps))
        losses = {str(r.way): r.first["loss"] for r in found if not r.way.has_images}
        if len(set(losses.values())) > 1:  # All runners begin with the same weights.
            raise AssertionError(f"the first steps have different losses: {losses}")
        return found

    def _runner(self, way: Way, gbps: float | None, **options: Any) -> Runner:
        return Runner(self._case, way, gbps, self._cores, self._args.blocks, **options)

    def _crossing(self, mode: str) -> int:
        runner = self._runner(Way(mode, 0.0), None)
        with runner.opt:
            found = runner.turn(self._args.steps)
        return max(round(statistics.fmean(found[way])) for way in ("h2d", "d2h"))

    def _ahead(self, way: Way, gbps: float) -> dict[str, Any]:
        """Bytes of the next step that had crossed when the last loss of a step was known.

        The trace's clock knows no later time before the step's commit.
        """
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            runner, known_us = self._runner(way, gbps, trace=trace), []
            for _ in range(self._args.steps):
                runner.step()
                known_us.append(runner.measured_us)
            runner.opt.close()
            return {"ahead_bytes": ahead_in_trace(json.loads(trace.read_text()), known_us)}


def ahead_in_trace(trace: dict[str, Any], known_us: list[float]) -> list[int]:
    """Return bytes of weights that had arrived by each time and were not perturbed since."""
    events = trace["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranges = [(rows[e["tid"]], e) for e in events if e["ph"] == "X"]
    found = []
    for until_us in known_us:
        came, perturbed = {}, {}
        for row, e in ranges:  # In order of their beginnings.
            if row == "h2d" and e["ts"] + e["dur"] <= until_us:
                came[e["name"]] = e["ts"] + e["dur"], e["args"]["bytes"]
            elif row == "perturb" and e["ts"] <= until_us:
                perturbed[e["name"]] = e["ts"]
        found.append(sum(size for name, (at, size) in came.items() if at > perturbed.get(name, 0)))
    return found


def columns(steps: list[dict[str, float]]) -> dict[str, list[float]]:
    """Turn a list of steps into lists by name."""
    return {name: [step[name] for step in steps] for name in steps[0]}


def matrix_bytes(model: torch.nn.Module) -> int:
    """Bytes of masters of the streamed matrices, enough for any mode; norms and biases stay."""
    return sum(4 * p.numel() for p in model.parameters() if p.requires_grad and p.dim() >= 2)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, as torch does on a card.

    Otherwise the kernel would clear new pages each time for the copies of perturbed weights that
    resident weights need.
    """
    libc = ctypes.CDLL(None)
    for option, value in ((_ARENAS, 1), (_MMAP_ABOVE, 32 << 20), (_TRIM_ABOVE, (1 << 31) - 1)):
        if not libc.mallopt(option, value):
            raise OSError(f"glibc refused mallopt({option}, {value})")


@contextlib.contextmanager
def device_of_one_core() -> Iterator[tuple[int, int]]:
    """Give torch one core and one thread; yield the cores of the device and of the lanes."""
    cores, threads = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {cores[0]})
    try:
        yield cores[0], cores[-1]
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--once", action="store_true", help="try a small model")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--shape", default="medium", help="a shape of experiments/step")
    parser.add_argument("--blocks", type=int, help="blocks; default: the shape's")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a step")
    modes = "log, write_back, or write_back-bf16, -fp16 or -fp8 for a narrow wire"
    parser.add_argument("--modes", nargs="+", default=["log"], help=modes)
    ratios = "seconds of the link divided by those of computing"
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5, 2.0], help=ratios)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a turn")
    parser.add_argument("--pending", type=int, default=24, help="most steps after a base")
    parser.add_argument("--pending-rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    if args.once:
        args.shape, args.tokens, args.rounds, args.steps = "small", 64, 2, 2
        args.pending, args.pending_rounds = 3, 1
    return args


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything in a file of results, without commit and command."""
    with device_of_one_core() as cores, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The warning says that norms are bf16, which is intended.
        sitting, rows = Sitting(args, cores), []
        for row in sitting.rows():
            rows.append(row)
            print(json.dumps(row), flush=True)
        return {"rows": rows, **sitting.about()}


def main(arguments: list[str] | None = None) -> None:
    """Measure and write, or show."""
    args = parsed(arguments)
    if args.table:
        print(tables(json.loads(args.out.read_text())))
        return
    if args.once:
        print(tables(measure(args)))
        return
    keep_freed_memory()
    result = measure(args)
    write_rows(args.out, **result)
    print(tables(result))


if __name__ == "__main__":
    main()
