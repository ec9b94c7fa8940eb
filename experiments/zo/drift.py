"""Distance of weights, after many small steps, from the exact result of the steps.

    python -m experiments.zo.drift            # all rows, into drift.json
    python -m experiments.zo.drift --table    # prints the tables of README.md

Every way takes the same steps: theta <- theta - lr g_k z_k. The package draws z_k, and g_k comes
from a normal distribution of deviation 1. So the intended displacement is known; the script sums it
in f64. The error of a way is its end, less its start and less that displacement.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from sluiceway import _core
from sluiceway.optim.zo.rates import as_float, group_update

from experiments.harness import write_rows
from experiments.same_bits.checkouts import machine

RESULTS = Path(__file__).with_name("drift.json")
RATES = (1e-7, 1e-6, 1e-5)
FAMILIES = ("rademacher", "gaussian")
EPS = 1e-3
TENSOR, DIRECTION, ROUNDING = _core.stable_hash("drift"), 0, 1  # Keys of noise and rounding.


class Way(Protocol):
    """A way of keeping weights."""

    def step(self, number: int, z: torch.Tensor, g: float) -> None:
        """Take a step."""

    def theta(self) -> torch.Tensor:
        """Return the weights exactly as the way keeps them."""


class InPlace:
    """MeZO's published method: weights are perturbed, restored and updated in place."""

    def __init__(self, start: torch.Tensor, lr: float) -> None:
        self._w, self._lr = start.clone(), lr

    def step(self, number: int, z: torch.Tensor, g: float) -> None:
        z = z.to(self._w.dtype)
        for sign in (1, -2, 1):
            self._w = self._w + sign * z * EPS
        self._w = self._w - self._lr * (g * z)

    def theta(self) -> torch.Tensor:
        return self._w


class Master:
    """Weights that each step is added to: f32, or bf16 with stochastic rounding."""

    def __init__(self, start: torch.Tensor, lr: float, family: str, seed: int) -> None:
        self._w, self._lr, self._family, self._seed = start.clone(), lr, family, seed

    def step(self, number: int, z: torch.Tensor, g: float) -> None:
        bits = (self._seed, number, TENSOR, ROUNDING) if self._w.dtype is torch.bfloat16 else None
        update = pending(self._seed, number, self._lr, g)
        _core.materialise(self._w, self._w, [update], 1.0, self._family, stochastic=bits)

    def theta(self) -> torch.Tensor:
        return self._w


class Log:
    """Base that stays as it is, and scalars; a new base of its type every `period` steps."""

    def __init__(
        self, start: torch.Tensor, lr: float, family: str, seed: int, period: int | None = None
    ) -> None:
        self._base, self._lr, self._family, self._seed = start.clone(), lr, family, seed
        self._period, self._pending = period, []

    def step(self, number: int, z: torch.Tensor, g: float) -> None:
        self._pending.append(pending(self._seed, number, self._lr, g))
        if len(self._pending) == self._period:
            bits, new = (self._seed, number, TENSOR, ROUNDING), torch.empty_like(self._base)
            _core.materialise(
                self._base, new, self._pending, 1.0, self._family, stochastic=bits
            )  # fmt: skip
            self._base, self._pending = new, []

    def theta(self) -> torch.Tensor:
        out = torch.empty_like(self._base, dtype=torch.float32)
        _core.materialise(self._base, out, self._pending, 1.0, self._family)
        return out


def pending(seed: int, number: int, lr: float, g: float) -> tuple[int, int, int, int, float]:
    """Return the update of a step as the optimizer makes it."""
    group = {"lr": lr, "weight_decay": 0.0, "gamma": 1.0}
    return (seed, number, TENSOR, DIRECTION, group_update("drift", group, [g]).scales[0])


def ways(weights: torch.Tensor, lr: float, family: str, seed: int) -> dict[str, tuple[Way, Any]]:
    """Return each way and the 16-bit weights it starts from, as if from a checkpoint."""
    half, brain = weights.half(), weights.bfloat16()
    single = brain.float()
    return {
        "in place, fp16": (InPlace(half, lr), half),
        "in place, bf16": (InPlace(brain, lr), brain),
        "bf16 master, rounded at random": (Master(brain, lr, family, seed), brain),
        "fp32 master": (Master(single, lr, family, seed), single),
        "log over bf16": (Log(brain, lr, family, seed), brain),
        "log, new bf16 base every 100 steps": (Log(brain, lr, family, seed, 100), brain),
    }


def measure(
    shape: tuple[int, int], steps: int, family: str, seed: int, rates: tuple[float, ...] = RATES
) -> Iterator[dict[str, Any]]:
    """Yield a row per way and rate: error and progress as shares of the intended displacement."""
    draw = torch.Generator().manual_seed(seed)
    weights = 0.02 * torch.randn(*shape, generator=draw)
    gradients = [as_float(g) for g in torch.randn(steps, generator=draw).tolist()]
    all_ways = {lr: ways(weights, lr, family, seed) for lr in rates}
    intended = torch.zeros(shape, dtype=torch.float64)  # For a learning rate of 1.
    z = torch.empty(shape)
    for number, g in enumerate(gradients):
        _core.draw_noise(z, family, seed, number, TENSOR, DIRECTION)
        intended -= g * z.double()
        for of_rate in all_ways.values():
            for way, _ in of_rate.values():
                way.step(number, z, g)
    for lr, of_rate in all_ways.items():
        aim = lr * intended
        for name, (way, start) in of_rate.items():
            moved = way.theta().double() - start.double()
            yield {
                "way": name, "lr": lr, "family": family, "seed": seed, "steps": steps,
                "shape": list(shape),
                "error": ((moved - aim).norm() / aim.norm()).item(),
                "progress": ((moved * aim).sum() / (aim * aim).sum()).item(),
            }  # fmt: skip
        same = torch.equal(of_rate["fp32 master"][0].theta(), of_rate["log over bf16"][0].theta())
        if not same:
            raise AssertionError(f"lr {lr}: the log does not give the bits of the fp32 master")


def table(rows: list[dict[str, Any]], family: str) -> str:
    """Format the error of each way; seeds are averaged."""
    rows = [row for row in rows if row["family"] == family]
    rates, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("lr", "way"))
    lines = ["| " + " | ".join(["way", *(f"lr {lr:.0e}" for lr in rates)]) + " |"]
    lines.append("|---" * (1 + len(rates)) + "|")
    for name in names:
        cells = [name]
        for lr in rates:
            of_cell = [row for row in rows if (row["way"], row["lr"]) == (name, lr)]
            cells.append(figure(sum(row["error"] for row in of_cell) / len(of_cell)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(error: float) -> str:
    """Format two digits, or all digits before the point."""
    return f"{error:.0f}" if error >= 100 else f"{error:.2g}"


def main() -> None:
    """Measure and write, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--steps", type=int, default=1000, help="at most 1024, as a call replays")
    parser.add_argument("--shape", type=int, nargs=2, default=(512, 1024))
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    args = parser.parse_args()
    if not args.table:
        rows: list[dict[str, Any]] = []
        for family in FAMILIES:
            for seed in args.seeds:
                rows += measure(tuple(args.shape), args.steps, family, seed)
                write_rows(RESULTS, rows, machine=machine())
                print(f"{family}, seed {seed}: done", flush=True)
    rows = json.loads(RESULTS.read_text())["rows"]
    for family in FAMILIES:
        print(f"\n{family}\n\n{table(rows, family)}")


if __name__ == "__main__":
    main()
