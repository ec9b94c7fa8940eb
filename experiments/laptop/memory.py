"""Measure whether a whole model trains within a budget of the device, by the driver's count.

    python -m experiments.laptop.memory --device cuda:0 --out FILE    # 1.3b in 4 GB, 7b in 24 GB
    python -m experiments.laptop.memory --device host --models small=1GiB --out FILE
    python -m experiments.laptop.memory --out FILE --table

Weights are drawn on the device; the script reads and writes no file but FILE. Every run is a
separate process, which trains a few steps with checkpointing while a thread asks the driver how
much memory is taken. At first the budget covers everything that the driver counts, and torch's
allocator gets the remainder. If a run fails that way, it is tried once more with the context, and
the kernels that a small model loads, counted outside the budget. Runs recorded in FILE do not
repeat. --retry repeats the runs that failed for any reason but too small a budget, which is a
finding. Exit status: 0, even if nothing fits; 1 if a run failed for another reason.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sluiceway.base.sizes import parse_bytes
from sluiceway.config.values import Budget
from sluiceway.run.summary import machine

from experiments.harness import check_document, read_rows, write_rows
from experiments.laptop.memory_table import memory_table
from experiments.quickstart.limited import row_of
from experiments.step.block_models import SHAPES, Case
from experiments.step.driver_count import TakenPeak, taken_bytes
from experiments.step.step_turn import clear, failure, torch_device, train_step
from experiments.step.step_ways import fused, hooks, make_optimizer

WAYS = {
    "default": {"total_steps": 1000},
    "hooks, f = 1/4": hooks(0.25),
    "fused, f = 1/4": fused(0.25),
    "hooks, f = 1/8": hooks(0.125),
    "fused, f = 1/8": fused(0.125),
}
ALL, BESIDE = "all", "context beside it"
_MODELS = ["1.3b=4GB", "7b=24GB"]
_VOCABULARY = 32_000
_NOT_ENOUGH = "OutOfMemory"  # Begins the names of torch's error and of ours.


def case_of(shape: str, tokens: int) -> Case:
    """Return a model with every block, and with the vocabulary of Llama's tokenizer."""
    return Case(shape, tokens, True, tokens, torch.bfloat16, _VOCABULARY)


def cap_torch(device: torch.device, budget: int) -> None:
    """Limit torch's allocator to the part of the budget that other memory of the device leaves."""
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    others = taken_bytes(device) - torch.cuda.memory_reserved(device)
    share = min(1.0, max(0.0, (budget - others) / total))
    torch.cuda.set_per_process_memory_fraction(share, device)


def trained(
    case: Case, way: str, name: str, steps: int, budget: int | None, counted: str = ALL
) -> dict[str, Any]:
    """Train a few steps within the budget on the device; None: without a limit."""
    device = torch_device(name)
    context = taken_bytes(device)
    room = None if budget is None else budget + (context if counted == BESIDE else 0)
    losses, laps = [], [time.monotonic()]
    with TakenPeak(device) as taken:
        if room is not None:
            cap_torch(device, room)
        with torch.device(device):
            model = case.build(case.layers)
        more = {"budget": Budget(device=budget), "tokens_per_step": case.tokens}
        ids = case.batch_on(device)
        with closing(make_optimizer(model, WAYS[way], None, name, **more)) as optimizer:
            for _ in range(steps):
                if room is not None:
                    cap_torch(device, room)  # The kernels that a step has loaded count, too.
                losses.append(float(train_step(model, optimizer, ids)))
                laps.append(time.monotonic())
            optimizer.synchronize()
            told = optimizer.stats()["peak_bytes"]
        held = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "context_bytes": context,
        "driver_bytes": taken.bytes,
        "device_bytes": told["device"],
        "torch_bytes": held,
        "host_bytes": told["host"] + told["pinned"],
        "losses": losses,
        "seconds": min(end - begin for begin, end in pairwise(laps)),
        "fits": room is None or taken.bytes <= room,
    }


def in_this_process(key: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Make one run, after a small one that loads kernels and makes the context."""
    small, whole = case_of("small", 64), case_of(key["model"], args.tokens)
    trained(small, key["way"], args.device, 2, None)
    clear(torch_device(args.device))
    run = (whole, key["way"], args.device, args.steps, key["budget"], key["counted"])
    return failure(lambda: trained(*run))


def in_a_process(key: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return one run's row, even if its process crashes or hangs."""
    command = [sys.executable, "-m", __spec__.name, "--one", json.dumps(key),
               "--device", args.device, "--tokens", str(args.tokens),
               "--steps", str(args.steps)]  # fmt: skip
    return row_of(command, args.run_limit)


def did_not_fit(row: dict[str, Any]) -> bool:
    """Tell whether a run ended because the budget is too small."""
    return row.get("failed", "").startswith(_NOT_ENOUGH)


def has_failed(row: dict[str, Any]) -> bool:
    """Tell whether a run failed for another reason than its budget."""
    return "failed" in row and not did_not_fit(row)


def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop runs that failed for other reasons than the budget, and the runs that followed them."""

    def asked(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["model"], row["budget"], row["way"]

    again = {asked(row) for row in rows if has_failed(row)}
    return [row for row in rows if asked(row) not in again]


def go_on(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Take every run that FILE lacks, until the time is over."""
    rows, end, left = read_rows(args.out), time.monotonic() + args.seconds, 0
    if args.retry:
        rows = kept(rows)
    about = {"machine": machine(), "device": args.device, "tokens": args.tokens,
             "vocabulary": _VOCABULARY}  # fmt: skip
    budgets = [one.split("=") for one in args.models]
    for way, (model, budget) in itertools.product(args.ways, budgets):
        for counted in (ALL, BESIDE):
            key = {"model": model, "budget": parse_bytes(budget), "way": way, "counted": counted}
            row = next((row for row in rows if key.items() <= row.items()), None)
            if row is None and time.monotonic() > end:
                left += 1
                break
            if row is None:
                begun = {**key, "failed": "did not end"}  # Stays if it kills us.
                write_rows(args.out, [*rows, begun], left=1, **about)
                row = {**key, **in_a_process(key, args)}
                rows.append(row)
                print(json.dumps(row), flush=True)
                write_rows(args.out, rows, left=1, **about)
            if row.get("fits"):
                break
    write_rows(args.out, rows, left=left, **about)
    return rows


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="or host")
    parser.add_argument("--out", type=Path, help="JSON file, continued if it exists")
    parser.add_argument("--models", nargs="+", default=_MODELS, metavar="SHAPE=SIZE",
                        help=f"budget of each shape; shapes: {' '.join(SHAPES)}")  # fmt: skip
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--run-limit", type=float, default=150, help="seconds of one run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none afterwards")
    parser.add_argument("--retry", action="store_true", help="repeat failed runs")
    parser.add_argument("--one", type=json.loads, help="make this run (JSON) here; print it")
    parser.add_argument("--table", action="store_true", help="print FILE and measure nothing")
    args = parser.parse_args()
    if args.one is None and args.out is None:
        parser.error("--out is missing; name a JSON file for the results")
    return args


def main() -> int:
    """Run all cases, or one of them."""
    args = parsed()
    if args.one is not None:
        print(json.dumps(in_this_process(args.one, args)))
        return 0
    rows = []
    if not args.table:
        check_document(args.out)
        rows = go_on(args)
    print(memory_table(json.loads(args.out.read_text())))
    return 1 if any(has_failed(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
