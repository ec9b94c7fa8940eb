"""Seconds to calibrate `svd` for one weight at f = 1/4, beside torch.svd_lowrank of the same rank.

    python experiments/projectors/svd_calibration.py           # writes svd_calibration.json
    python experiments/projectors/svd_calibration.py --table   # prints it for the README

The product's seconds are `learn_seconds` of the first step, which hold three measurements of the
bias beside the fit. The gradient is random: the time does not depend on its values. Goes on from
what is in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import torch
from sluiceway import SubspaceAdamW
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "quickstart"))

from run_folder import provenance

RESULTS = Path(__file__).with_suffix(".json")
SHAPES = ((1024, 1024), (4096, 4096), (4096, 11008))  # m x n of the weight.
RATIO = 0.25
EXTRA, POWERS = 8, 2  # Of the product's range finder, given to torch's too.


def product_seconds(m: int, n: int) -> float:
    """Of the calibration in the first step."""
    model = nn.Linear(n, m, bias=False)
    with SubspaceAdamW(model, codec="svd", ratio=RATIO, residual="none") as optimizer:
        (model(torch.randn(m, n)) * torch.randn(m, m)).sum().backward()
        optimizer.step()
        return optimizer.stats()["learn_seconds"]


def lowrank_seconds(m: int, n: int) -> float:
    """Of torch.svd_lowrank."""
    g = torch.randn(m, n)
    rank = min(m, n, round(RATIO * max(m, n)) + EXTRA)
    began = time.perf_counter()
    torch.svd_lowrank(g, q=rank, niter=POWERS)
    return time.perf_counter() - began


def processor() -> str:
    """Kind and number of the processors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}"


def table(found: dict) -> str:
    """Markdown."""
    lines = ["| weight | threads | svd of the product, s | torch.svd_lowrank, s |",
             "|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {r['m']} x {r['n']} | {r['threads']} | {r['product_s']:.2f} | {r['lowrank_s']:.2f} |"
        for r in found["rows"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print svd_calibration.json")
    args = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    every = os.cpu_count() or 1
    for (m, n), threads in ((s, t) for s in SHAPES for t in sorted({1, every})):
        key = {"m": m, "n": n, "threads": threads}
        if args.table or any(key.items() <= row.items() for row in found["rows"]):
            continue
        torch.set_num_threads(threads)
        load = os.getloadavg()[0]
        row = {**key, "product_s": product_seconds(m, n), "lowrank_s": lowrank_seconds(m, n),
               "load_before": load}  # fmt: skip
        print(json.dumps(row), flush=True)
        found = {**provenance(), "machine": processor(), "torch": torch.__version__,
                 "rows": [*found["rows"], row]}  # fmt: skip
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
