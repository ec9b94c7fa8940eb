"""Time the calibration of `svd` for one weight at f = 1/4, and torch.svd_lowrank of the same rank.

    python -m experiments.projectors.svd_calibration           # writes svd_calibration.json
    python -m experiments.projectors.svd_calibration --table   # prints it for the README

Both get the same random gradient. The product's optimizer receives it as calibration, and measures
the bias once after the fit. CPU seconds are those of all threads; where they are far below the
seconds, other programs held the processor. The script skips the cases that the file already has.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sluiceway import SubspaceAdamW
from torch import nn

from experiments.harness import read_rows, write_rows

RESULTS = Path(__file__).with_suffix(".json")
SHAPES = ((1024, 1024), (4096, 4096), (4096, 11008))  # m x n of the weight.
RATIO = 0.25
EXTRA, POWERS = 8, 2  # Rounds of the product's range finder, given to torch's too.


def timed(call: Callable[[], object]) -> list[float]:
    """Return the seconds and CPU seconds of a call."""
    began, cpu_began = time.perf_counter(), time.process_time()
    call()
    return [time.perf_counter() - began, time.process_time() - cpu_began]


def measured(m: int, n: int) -> dict[str, list[float]]:
    """Time one calibration by the product and one torch.svd_lowrank."""
    g = torch.randn(m, n)
    rank = min(m, n, round(RATIO * max(m, n)) + EXTRA)
    with SubspaceAdamW(nn.Linear(n, m, bias=False), codec="svd", ratio=RATIO,
                       residual="none") as optimizer:  # fmt: skip
        optimizer.engine.begin_calibration()
        product = timed(lambda: optimizer.engine.add_gradient(0, g, g, optimizer.device.compute()))
        optimizer.engine.end_calibration()
    return {"product": product, "lowrank": timed(lambda: torch.svd_lowrank(g, rank, POWERS))}


def table(rows: list[dict]) -> str:
    """Format the rows as Markdown."""
    lines = ["| weight | threads | product, s (CPU s) | torch.svd_lowrank, s (CPU s) | load |",
             "|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        times = (f"{row[which][0]:.2f} ({row[which][1]:.2f})" for which in ("product", "lowrank"))
        lines.append(f"| {row['m']} x {row['n']} | {row['threads']} | {' | '.join(times)} "
                     f"| {row['load']:.1f} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the recorded rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print svd_calibration.json")
    args = parser.parse_args()
    rows = read_rows(RESULTS)
    every = os.cpu_count() or 1
    for threads, (m, n) in ((t, s) for t in sorted({1, every}) for s in SHAPES):
        key = {"m": m, "n": n, "threads": threads}
        if args.table or any(key.items() <= row.items() for row in rows):
            continue
        torch.set_num_threads(threads)
        measured(256, 256)  # The first call pays for one-time work, so it does not count.
        rows.append({**key, "load": os.getloadavg()[0], **measured(m, n)})
        print(json.dumps(rows[-1]), flush=True)
        write_rows(RESULTS, rows, torch=torch.__version__)
    print(table(rows))


if __name__ == "__main__":
    main()
