"""Compare torch's, torchao's, FlashOptim's and our optimizers with one model, batch and card.

    python -m experiments.gpu.peers --device cuda:0 --out FILE
    python -m experiments.gpu.peers --device host --shape small --tokens 64 --out FILE

Weights and gradients are bf16, with checkpointing; embedding and head are frozen. Every way trains
a few steps in a separate process with a time limit, and the script writes FILE after each. One way
updates nothing: the extra time of another way, divided by the number of weights, is that way's cost
a weight. Where the launching thread bounds the step, the cost is that thread's time. Repeat the
same command to run the ways that FILE lacks and to retry those that failed. A library that is not
installed gets a row that says so. Exit status: 0, or 1 if a way failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sluiceway as sw
import torch

from experiments.gpu.part_tables import FLOOR, peers_table
from experiments.harness import check_document, read_rows, write_rows
from experiments.quickstart.limited import row_of
from experiments.step.block_models import SHAPES, Case
from experiments.step.driver_count import TakenPeak
from experiments.step.step_turn import failure, torch_device, train_step
from experiments.step.step_ways import Laps, fused, hooks

_LR = 1e-4
_VOCABULARY, _SEQUENCE = 32_000, 1024
_LEAST_STEPS = 2
_OF_ALL_ROWS = ("device", "shape", "tokens")

Make = Callable[[torch.nn.Module, argparse.Namespace], Any]


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that the optimizer trains."""
    return [p for p in model.parameters() if p.requires_grad]


class NoUpdate:
    """Optimizer that drops the gradients of every step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def step(self) -> None:
        """Leave all weights as they are."""

    def zero_grad(self) -> None:
        """Drop every gradient."""
        self._model.zero_grad(set_to_none=True)


def forward_and_backward(model: torch.nn.Module, args: argparse.Namespace) -> NoUpdate:
    """Return the optimizer that updates nothing."""
    return NoUpdate(model)


def native(model: torch.nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """Return torch's AdamW, which keeps its moments beside the weights."""
    return torch.optim.AdamW(trained(model), lr=_LR, fused=True)


def ours(**options: object) -> Make:
    """Make a way of SubspaceAdamW."""

    def make(model: torch.nn.Module, args: argparse.Namespace) -> sw.SubspaceAdamW:
        return sw.SubspaceAdamW(model, lr=_LR, device=args.device, accumulate=1, **options)

    return make


def default(model: torch.nn.Module, args: argparse.Namespace) -> sw.SubspaceAdamW:
    """Return SubspaceAdamW with the options that it chooses for a run of 1,000 steps."""
    return ours(tokens_per_step=args.tokens, total_steps=1000)(model, args)


def offloaded(model: torch.nn.Module, args: argparse.Namespace) -> sw.OffloadAdamW:
    """Return full AdamW with its states in host memory."""
    return sw.OffloadAdamW(model, lr=_LR, device=args.device, tier="host")


def torchao(offload_gradients: bool) -> Make:
    """Make a way of torchao's optimizer that steps on the host."""

    def make(model: torch.nn.Module, args: argparse.Namespace) -> Any:
        from torchao.optim import CPUOffloadOptimizer

        options = {"offload_gradients": offload_gradients, "fused": True, "lr": _LR}
        return CPUOffloadOptimizer(trained(model), torch.optim.AdamW, **options)

    return make


def flash(model: torch.nn.Module, args: argparse.Namespace) -> Any:
    """Return FlashOptim's AdamW, which has smaller states."""
    from flashoptim import FlashAdamW

    return FlashAdamW(trained(model), lr=_LR)


# Name of each way, the library it needs beside ours, and its maker; most telling first.
WAYS: dict[str, tuple[str, Make]] = {
    "torch AdamW, fused": ("torch", native),
    FLOOR: ("torch", forward_and_backward),
    "Sluiceway, default": ("sluiceway", default),
    "Sluiceway, cores f = 1/4": ("sluiceway", ours(**hooks(0.25))),
    "Sluiceway, fused f = 1/2": ("sluiceway", ours(**fused(0.5))),
    "torchao CPUOffloadOptimizer": ("torchao", torchao(False)),
    "Sluiceway, offload to host": ("sluiceway", offloaded),
    "FlashAdamW": ("flashoptim", flash),
    "torchao CPUOffloadOptimizer, gradients too": ("torchao", torchao(True)),
    "Sluiceway, svd f = 1/2": ("sluiceway", ours(codec="svd", ratio=0.5)),
}


def thread_seconds() -> Counter[str]:
    """Return the compute seconds of threads, by thread name; the main one is "main"."""
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        name = "main" if task.name == str(os.getpid()) else (task / "comm").read_text().strip()
        found[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def measured(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps; return their median time, threads' seconds, memory and losses."""
    device = torch_device(args.device)
    case = Case(args.shape, args.tokens, True, _SEQUENCE, torch.bfloat16, _VOCABULARY)
    taken, laps, losses = TakenPeak(device), Laps(device), []
    with torch.device(device):
        model = case.build(case.layers)
    ids, began = case.batch_on(device), time.monotonic()
    optimizer = WAYS[way][1](model, args)
    made, most = time.monotonic() - began, args.warmup + args.steps
    for step in range(most):
        if step == args.warmup:
            computed = thread_seconds()
        laps.mark()
        losses.append(train_step(model, optimizer, ids))
        if step < args.warmup:
            taken.look()  # Looking later would add to the times.
        elif step + 1 >= args.warmup + _LEAST_STEPS and time.monotonic() - began > args.patience:
            break
    laps.mark()
    computed = thread_seconds() - computed
    getattr(optimizer, "close", lambda: None)()
    seconds = laps.seconds()[args.warmup :]
    on_card = device.type == "cuda"
    return {
        "seconds": statistics.median(seconds),
        "steps": len(seconds),
        "made_seconds": made,
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights": sum(p.dim() > 1 for p in trained(model)),
        "thread_seconds": {name: s / len(seconds) for name, s in computed.most_common(8)},
        "torch_bytes": torch.cuda.max_memory_reserved(device) if on_card else None,
        "driver_bytes": taken.look(),
        "process_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "losses": [float(loss) for loss in losses],
    }


def is_installed(library: str) -> bool:
    """Say whether a library can be found."""
    return importlib.util.find_spec(library) is not None


def in_a_process(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return one way's row, even if its process crashes or hangs."""
    if not is_installed(WAYS[way][0]):
        return {"missing": f"{WAYS[way][0]} is not installed"}
    command = [sys.executable, "-m", __spec__.name, "--one", way, "--device", args.device,
               "--shape", args.shape, "--tokens", str(args.tokens), "--steps", str(args.steps),
               "--warmup", str(args.warmup), "--patience", str(args.patience)]  # fmt: skip
    return row_of(command, args.turn_limit)


def go_on(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the ways that FILE lacks or that failed, until the time is over."""
    end = time.monotonic() + args.seconds
    about = {name: getattr(args, name) for name in _OF_ALL_ROWS}
    known = {row["way"]: row for row in read_rows(args.out) if "seconds" in row}
    left = [way for way in args.ways if way not in known]

    def rows() -> list[dict[str, Any]]:
        return [known[way] for way in WAYS if way in known]

    write_rows(args.out, rows(), left=len(left), **about)
    while left and time.monotonic() < end:
        way = left.pop(0)
        known[way] = {"way": way, **in_a_process(way, args)}
        told = {key: value for key, value in known[way].items() if key != "log"}
        print(json.dumps(told), flush=True)
        write_rows(args.out, rows(), left=len(left), **about)
    return rows()


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="or host")
    parser.add_argument("--out", type=Path, help="JSON file, continued if it exists")
    parser.add_argument("--shape", choices=SHAPES, default="1.3b")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a step")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=8)
    patience = "seconds after which a way takes no more than two timed steps"
    parser.add_argument("--patience", type=float, default=12, help=patience)
    parser.add_argument("--turn-limit", type=float, default=60, help="seconds of one way")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none afterwards")
    parser.add_argument("--one", choices=list(WAYS), help="measure this way here; print it")
    args = parser.parse_args()
    if args.one is None and args.out is None:
        parser.error("--out is missing; name a JSON file for the results")
    return args


def main() -> int:
    """Measure all ways, or one of them."""
    args = parsed()
    if args.one is not None:
        print(json.dumps(failure(lambda: measured(args.one, args))))
        return 0
    check_document(args.out, **{name: getattr(args, name) for name in _OF_ALL_ROWS})
    rows = go_on(args)
    print(peers_table(json.loads(args.out.read_text())))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
