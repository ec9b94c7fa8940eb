"""Seconds until native's final held-out loss, over the demo's link.

    python experiments/regimes/time_to_quality.py          # on a quiet machine: one run at a time
    python experiments/regimes/time_to_quality.py --table  # what results/time_to_quality.jsonl has

Every run is `sluiceway train configs/quickstart.yaml`, with its throttled link. Seconds are those
of the steps, with calibration and learning and without evaluations. A run that ends above native's
loss of the same seed never gets there, and counts as such. Each way has the rate that
experiments/quickstart found best for it. A run that the file has is not repeated.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER.parent / name) for name in ("fidelity", "quickstart")]

from demo import BARRIER, NATIVE  # noqa: E402
from row_lines import Row, append_row, read_rows  # noqa: E402
from run_folder import REPOSITORY, RunFolder, provenance, train  # noqa: E402
from tables import table  # noqa: E402

RESULTS = FOLDER / "results" / "time_to_quality.jsonl"
CONFIG = REPOSITORY / "configs/quickstart.yaml"
WAYS = {
    "native": NATIVE,
    "full gradients, barriers": BARRIER,
    "the paper's codec": {"engine.codec": "sparse_learned", "train.lr": 8e-3},
    "the residual alone": {"engine.codec": "none"},
    "Sluiceway": {},
}
ACCUMULATE = (1, 8)
SEEDS = (0, 1, 2)
LOOKS = 12
Curve = Sequence[tuple[float, float]]  # Seconds and loss of every look, from the start.


def seconds_until(curve: Curve, target: float) -> float:
    """When the loss was first that low, on a line between two looks; infinite: never."""
    if curve[0][1] <= target:
        return curve[0][0]
    for (begin, high), (end, low) in pairwise(curve):
        if low <= target:
            return begin + (end - begin) * (high - target) / (high - low)
    return math.inf


def curve_of(run: RunFolder) -> list[tuple[float, float]]:
    """Its looks by the seconds of its steps."""
    ends = dict(zip((line["step"] for line in run.steps),
                    accumulate(line["seconds"] for line in run.steps), strict=True))  # fmt: skip
    return [(ends.get(step, 0.0), loss) for step, loss in run.evals]


def row_of(way: str, micro_batches: int, seed: int, steps: int) -> Row:
    """One run, whose folder is gone afterwards."""
    overrides = {**WAYS[way], "train.steps": steps, "train.accumulate": micro_batches,
                 "train.seed": seed, "train.eval_every": max(1, steps // LOOKS),
                 "trace": "false"}  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch) / "run", Path(scratch) / "log"
        try:
            run = train(CONFIG, folder, overrides, log=log)
        except subprocess.CalledProcessError:
            sys.exit(log.read_text())
        return {"way": way, "accumulate": micro_batches, "seed": seed, "steps": steps,
                "curve": curve_of(run), "step_seconds": run.step_seconds,
                **provenance()}  # fmt: skip


def times(rows: Sequence[Row], way: str, micro_batches: int) -> list[tuple[float, float]]:
    """Time to native's loss over native's own, and the last loss less native's, by seed."""
    by = {(row["way"], row["accumulate"], row["seed"]): row["curve"] for row in rows}
    found = []
    for seed in sorted({row["seed"] for row in rows}):
        mine, native = by.get((way, micro_batches, seed)), by.get(("native", micro_batches, seed))
        if mine and native:
            end, target = native[-1]
            found.append((seconds_until(mine, target) / end, mine[-1][1] - target))
    return found


def document(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = []
    for micro_batches, way in product(ACCUMULATE, WAYS):
        if found := times(rows, way, micro_batches):
            there = [ratio for ratio, _ in found if math.isfinite(ratio)]
            behind = statistics.fmean(loss for _, loss in found)
            lines.append((str(micro_batches), way, f"{len(there)} of {len(found)}",
                          f"{statistics.median(there):.2f}" if there else "-",
                          f"{1000 * behind:+.1f}"))  # fmt: skip
    return table(("micro-batches a step", "way", "seeds that get there", "time over native's",
                  "last loss less native's, thousandths"), lines)  # fmt: skip


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--table", action="store_true", help="run nothing")
    args = parser.parse_args()
    asked = list(product(ACCUMULATE, SEEDS, WAYS))
    done = {(r["accumulate"], r["seed"], r["way"]) for r in read_rows(RESULTS)
            if r["steps"] == args.steps}  # fmt: skip
    missing = [] if args.table else [one for one in asked if one not in done]
    if missing:
        print(f"{len(missing)} of {len(asked)} runs are missing", flush=True)
    for micro_batches, seed, way in missing:
        append_row(RESULTS, row_of(way, micro_batches, seed, args.steps))
        print(f"  {way}, {micro_batches} micro-batches, seed {seed}", flush=True)
    print(document([row for row in read_rows(RESULTS) if row["steps"] == args.steps]))


if __name__ == "__main__":
    main()
