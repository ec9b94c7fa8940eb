"""Microseconds that each optimizer adds to a weight and step in the thread that trains.

    python -m experiments.bench.hooks_cost [--out FILE]

The matrices have 32 x 32 elements, so that hooks, checks and calls count and arithmetic does not.
All ways train the same model in one process, one step each in turn. Times are the thread's own
processor time; lanes run in threads of their own. What a device's driver takes for a launch comes
on top. FILE gets one more row of JSON.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import sluiceway as sw
import torch
from torch import nn

from experiments.gpu.peers import NoUpdate
from experiments.harness import append_row, provenance

_LR, _WIDTH = 1e-4, 32


def subspace(**options: Any) -> Callable[[nn.Module], Any]:
    """Make a way of SubspaceAdamW, which otherwise leaves matrices this small to torch."""
    return lambda model: sw.SubspaceAdamW(model, lr=_LR, device="host", target=".*", **options)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "no update": NoUpdate,
    "torch AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), lr=_LR, fused=True),
    "default": subspace(accumulate=1, tokens_per_step=2048, total_steps=1000),
    "cores": subspace(codec="block_random"),
    "offload to host": lambda model: sw.OffloadAdamW(model, lr=_LR, device="host", tier="host"),
}
PHASES = ("forward", "backward", "step", "zero_grad")


class Way:
    """A model with one optimizer, and the processor time of each phase of its steps."""

    def __init__(self, make: Callable[[nn.Module], Any], weights: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(weights)]
        self._model = nn.Sequential(*layers).to(torch.bfloat16)
        self._inputs = torch.randn(1, _WIDTH, dtype=torch.bfloat16)
        self.optimizer = make(self._model)
        self.times: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def step(self) -> None:
        """Train one step, and note the seconds of its phases."""
        marks = [time.thread_time()]
        loss = self._model(self._inputs).float().square().mean()
        marks.append(time.thread_time())
        loss.backward()
        marks.append(time.thread_time())
        self.optimizer.step()
        marks.append(time.thread_time())
        self.optimizer.zero_grad()
        marks.append(time.thread_time())
        for phase, (begin, end) in zip(PHASES, pairwise(marks), strict=True):
            self.times[phase].append(end - begin)


def measured(weights: int, steps: int, warmup: int) -> dict[str, dict[str, float]]:
    """Return by way and phase the median microseconds a weight and step."""
    ways = {name: Way(make, weights) for name, make in WAYS.items()}
    for _ in range(warmup + steps):
        for way in ways.values():
            way.step()
    found = {}
    for name, way in ways.items():
        seconds = {phase: statistics.median(t[warmup:]) for phase, t in way.times.items()}
        found[name] = {phase: round(1e6 * s / weights, 2) for phase, s in seconds.items()}
        getattr(way.optimizer, "close", lambda: None)()
    return found


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, default=168)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--out", type=Path, help="JSON file that gets one more row")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(args.weights, args.steps, args.warmup)
    floor = sum(found["no update"].values())
    for name, phases in found.items():
        more = sum(phases.values()) - floor
        told = ", ".join(f"{phase} {us:.1f}" for phase, us in phases.items())
        print(f"{name:20} {more:6.1f} us a weight beyond no update ({told})")
    if args.out:
        row = {**provenance(), "torch": torch.__version__, "weights": args.weights, "us": found}
        append_row(args.out, row)


if __name__ == "__main__":
    main()
