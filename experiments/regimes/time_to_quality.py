"""Measure seconds to native's last held-out loss, and to 95 % of its gain, over the demo's link.

    python -m experiments.regimes.time_to_quality          # on a quiet machine: one run at a time
    python -m experiments.regimes.time_to_quality --table  # prints time_to_quality.jsonl

Every run is `sluiceway train configs/quickstart.yaml`. The link has the rate that the demo derives
from this machine, once for the file; every row records it. Seconds are those of the steps, with
calibration and learning and without evaluations; between two evaluations a loss lies on a line.
They are divided by the seconds that native with the same seed needs for the same share of its gain,
so a method as good as native has 1, and the length of the schedule plays no part.

Runs of equal methods end up to 4 % of that gain apart (experiments/quickstart/native_spread.json).
A method as good as native may thus miss native's last loss, and reaches 95 %. The table shows
medians, and the number of runs that get there if some do not. All ways have the rate of
configs/quickstart.yaml, which experiments/quickstart found best for native; only the paper's codec
has its own. Gradients are clipped as that config says. A run that the file has is not repeated.
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

from experiments.fidelity.tables import table
from experiments.harness import REPOSITORY, Row, append_row, provenance, read_rows
from experiments.quickstart.demo import choose_link
from experiments.quickstart.demo_ways import BARRIER, CORES, NATIVE
from experiments.quickstart.run_folder import RunFolder, link_overrides, train
from experiments.same_bits.checkouts import machine

RESULTS = Path(__file__).with_suffix(".jsonl")
CONFIG = REPOSITORY / "configs/quickstart.yaml"
WAYS = {
    "native": NATIVE,
    "full gradients, barriers": BARRIER,
    "the paper's codec": {"engine.codec": "sparse_learned", "train.lr": 8e-3},
    "cores": CORES,
    "svd, half of each side": {"engine.codec": "svd"},
    "Sluiceway": {},
}
ACCUMULATE = (1, 8)
SEEDS = (0, 1, 2)
LOOKS, SEQUENCES = 24, 64  # All ways run with the same seeds.
SHARES = (1.0, 0.95)  # Shares of native's gain; the whole gain means its last loss.
Curve = Sequence[tuple[float, float]]  # Seconds and loss of every evaluation, from the start.


def seconds_until(curve: Curve, target: float) -> float:
    """Seconds until the loss is `target`, interpolated between measurements; infinite if never."""
    if curve[0][1] <= target:
        return curve[0][0]
    for (begin, high), (end, low) in pairwise(curve):
        if low <= target:
            return begin + (end - begin) * (high - target) / (high - low)
    return math.inf


def curve_of(run: RunFolder) -> list[tuple[float, float]]:
    """Measured losses of a run by the seconds of its steps."""
    ends = dict(zip((line["step"] for line in run.steps),
                    accumulate(line["seconds"] for line in run.steps), strict=True))  # fmt: skip
    return [(ends.get(step, 0.0), loss) for step, loss in run.evals]


def rate_of(rows: Sequence[Row]) -> float:
    """Rate of the link in GB/s, from existing rows or else measured on this machine."""
    if not rows:
        return choose_link(CONFIG, None)["gbps"]
    if rows[0]["machine"] != machine():
        sys.exit(
            f"{RESULTS}: rows are of {rows[0]['machine']} and this is {machine()}. Seconds of "
            "two machines do not compare; delete the file to begin anew."
        )
    return rows[0]["link_gbps"]


def row_of(way: str, micro_batches: int, seed: int, steps: int, gbps: float) -> Row:
    """Make one run and return its row; its folder is removed afterwards."""
    overrides = {**WAYS[way], "train.steps": steps, "train.accumulate": micro_batches,
                 "train.seed": seed, "train.eval_every": max(1, steps // LOOKS),
                 "train.eval_sequences": SEQUENCES, "trace": "false",
                 **link_overrides(gbps)}  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch) / "run", Path(scratch) / "log"
        try:
            run = train(CONFIG, folder, overrides, log=log)
        except subprocess.CalledProcessError:
            sys.exit(log.read_text())
        return {"way": way, "accumulate": micro_batches, "seed": seed, "steps": steps,
                "link_gbps": gbps, "overrides": WAYS[way], "curve": curve_of(run),
                "step_seconds": run.step_seconds, **provenance(), "machine": machine()}  # fmt: skip


def pairs_of(rows: Sequence[Row], way: str, micro_batches: int) -> list[tuple[Curve, Curve]]:
    """Return the curves of a way and of native, by seed.

    Raises
    ------
    ValueError
        Two rows of a pair had links of different rates, or native gained nothing.
    """
    by = {(row["way"], row["accumulate"], row["seed"]): row for row in rows}
    found = []
    for seed in sorted({row["seed"] for row in rows}):
        mine, native = by.get((way, micro_batches, seed)), by.get(("native", micro_batches, seed))
        if not mine or not native:
            continue
        if mine["link_gbps"] != native["link_gbps"]:
            raise ValueError(
                f"time_to_quality: {way}, seed {seed}: link of {mine['link_gbps']:g} GB/s and "
                f"native's of {native['link_gbps']:g}, which must agree; delete the file"
            )
        if not native["curve"][-1][1] < native["curve"][0][1]:
            raise ValueError(f"time_to_quality: native gained nothing with seed {seed}")
        found.append((mine["curve"], native["curve"]))
    return found


def times(pairs: Sequence[tuple[Curve, Curve]], share: float) -> list[tuple[float, float]]:
    """Return seconds to a share of native's gain, for the way and for native, by seed."""
    found = []
    for mine, native in pairs:
        (_, first), (_, last) = native[0], native[-1]
        target = first - share * (first - last)
        found.append((seconds_until(mine, target), seconds_until(native, target)))
    return found


def _median(values: list[float]) -> str:
    """Format the median; if some values are infinite, format how many are finite."""
    there = sum(map(math.isfinite, values))
    return (
        f"{statistics.median(values):.2f}" if there == len(values) else f"{there} of {len(values)}"
    )


def document(rows: Sequence[Row]) -> str:
    """Format the table as Markdown."""
    lines = []
    for micro_batches, way in product(ACCUMULATE, WAYS):
        if pairs := pairs_of(rows, way, micro_batches):
            whole, most = (times(pairs, share) for share in SHARES)
            behind = statistics.fmean(mine[-1][1] - native[-1][1] for mine, native in pairs)
            lines.append((str(micro_batches), way, str(len(pairs)), _median([t for t, _ in whole]),
                          *(_median([mine / native for mine, native in each])
                            for each in (whole, most)), f"{1000 * behind:+.1f}"))  # fmt: skip
    return table(("micro-batches a step", "way", "seeds", "seconds to native's last loss",
                  "over native's", "to 95 % of its gain, over native's",
                  "last loss less native's, thousandths"), lines)  # fmt: skip


def rows_of(steps: int) -> list[Row]:
    """Rows of runs of this length, with the present methods."""
    return [row for row in read_rows(RESULTS)
            if row["steps"] == steps and row["overrides"] == WAYS.get(row["way"])]  # fmt: skip


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--table", action="store_true", help="run nothing")
    args = parser.parse_args()
    asked = list(product(ACCUMULATE, SEEDS, WAYS))
    done = {(r["accumulate"], r["seed"], r["way"]) for r in rows_of(args.steps)}
    missing = [] if args.table else [one for one in asked if one not in done]
    if missing:
        gbps = rate_of(read_rows(RESULTS))
        print(f"{len(missing)} of {len(asked)} runs are missing; {gbps:g} GB/s", flush=True)
    for micro_batches, seed, way in missing:
        append_row(RESULTS, row_of(way, micro_batches, seed, args.steps, gbps))
        print(f"  {way}, {micro_batches} micro-batches, seed {seed}", flush=True)
    print(document(rows_of(args.steps)))


if __name__ == "__main__":
    main()
