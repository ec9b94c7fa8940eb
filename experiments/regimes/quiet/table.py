"""Answer the question `quiet`: compare the engine's ways with AdamW in steps without noise.

    python -m experiments.regimes.quiet.table             # runs that are left; resumable
    python -m experiments.regimes.quiet.table --table     # prints table.jsonl

Every way takes 12 steps on each of two random Llamas, with five seeds of model, batch and
projectors, at AdamW's rate: nothing is tuned. A row has the losses before some of the steps.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import sluiceway as sw
import torch

from experiments.harness import Row, append_row, provenance, read_rows
from experiments.regimes.quiet.quiet_model import LOOKS, losses, one_batch, random_llama

RESULTS = Path(__file__).with_suffix(".jsonl")
MODELS = {256: (4, 1e-3), 768: (8, 3e-4)}  # Hidden size: layers and rate.
SEEDS = range(5)
ADAMW = "AdamW"

Make = Callable[[torch.nn.Module, float, int], Any]


def adamw(model: torch.nn.Module, lr: float, seed: int) -> torch.optim.Optimizer:
    """Return torch's AdamW over the trained weights."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)


def ours(**options: object) -> Make:
    """Make a way of SubspaceAdamW."""

    def make(model: torch.nn.Module, lr: float, seed: int) -> sw.SubspaceAdamW:
        return sw.SubspaceAdamW(model, lr=lr, seed=seed, **{"accumulate": 1, **options})

    return make


def core(codec: str, ratio: float, **options: object) -> Make:
    """Make a way with a core of f = ratio."""
    return ours(codec=codec, ratio=ratio, **options)


WAYS: dict[str, Make] = {
    ADAMW: adamw,
    "the default": ours(codec="none"),
    "the default, one rate": ours(codec="none", weight_rates="equal"),
    "svd 1/2": core("svd", 0.5),
    "svd 1/2, no residual": core("svd", 0.5, residual="none"),
    "svd 1": core("svd", 1.0),
    "block_random 1/2": core("block_random", 0.5),
    "block_random 1/2, no residual": core("block_random", 0.5, residual="none"),
    "block_random 1/4": core("block_random", 0.25),
    "block_random 1/4, no residual": core("block_random", 0.25, residual="none"),
}


def measured(hidden: int, way: str, seed: int) -> Row:
    """Take the steps of one run."""
    layers, lr = MODELS[hidden]
    model, began = random_llama(hidden, layers, seed), time.monotonic()
    optimizer = WAYS[way](model, lr, seed)
    with closing(optimizer) if hasattr(optimizer, "close") else nullcontext():
        found = losses(model, optimizer, one_batch(seed))
    return {
        "hidden": hidden, "layers": layers, "lr": lr, "way": way, "seed": seed,
        "steps": list(LOOKS), "losses": found, "seconds": round(time.monotonic() - began, 1),
        **provenance(),
    }  # fmt: skip


def mean_and_error(values: list[float]) -> str:
    """Format a mean with its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.2f} ± {error:.2f}"


def table(rows: list[Row]) -> str:
    """Return the last losses, and their paired differences from AdamW's with the same seed."""
    head = [f"hidden {hidden}, less AdamW | loss" for hidden in MODELS]
    lines = [f"| way | {' | '.join(head)} |", "|---|" + "---|" * (2 * len(MODELS))]
    last = {(row["hidden"], row["way"], row["seed"]): row["losses"][-1] for row in rows}
    for way in WAYS:
        cells = [way]
        for hidden in MODELS:
            seeds = [s for s in SEEDS if (hidden, way, s) in last and (hidden, ADAMW, s) in last]
            ends = [last[hidden, way, seed] for seed in seeds]
            apart = [last[hidden, way, s] - last[hidden, ADAMW, s] for s in seeds]
            cells += [mean_and_error(apart), mean_and_error(ends)] if seeds else ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make the missing runs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--hidden", type=int, nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = {(row["hidden"], row["way"], row["seed"]) for row in read_rows(RESULTS)}
    every = [(h, way, seed) for seed in SEEDS for h in args.hidden for way in WAYS]
    for run in [] if args.table else [run for run in every if run not in known]:
        row = measured(*run)
        append_row(RESULTS, row)
        print(f"{run[0]}, {run[1]}, seed {run[2]}: {row['losses']}, {row['seconds']} s", flush=True)
    print(table(read_rows(RESULTS)))


if __name__ == "__main__":
    main()
