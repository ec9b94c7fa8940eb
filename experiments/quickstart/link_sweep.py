"""Measure step time over link rates: Sluiceway, full-gradient offload with barriers, and native.

    python -m experiments.quickstart.link_sweep

Cores are pinned as the config says: torch, the device streams and native on one, link and host
lanes on the other. The ways take turns (A B C A B C ...), so a disturbance hits all of them. At the
config's own link rate every way runs `--rounds` times. Then block_random and full gradients run at
multiples of that rate, to find the rate at which full gradients catch up. Last, native and svd run
with more tokens a step, since dense projectors cost the same for any number of tokens. Appends
a line to link_sweep.jsonl; `--table` prints it for the README.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import yaml

from experiments.harness import REPOSITORY, append_row, provenance, read_documents
from experiments.quickstart.demo_ways import BARRIER, NATIVE
from experiments.quickstart.run_folder import link_overrides, train

RESULTS = Path(__file__).with_suffix(".jsonl")
WAYS = {
    "native": NATIVE,
    "block_random": {"engine.codec": "block_random", "engine.residual": "none"},
    "block_random + residual": {"engine.codec": "block_random", "engine.residual": "factored"},
    "svd + residual": {"engine.codec": "svd", "engine.residual": "factored"},
    "full gradients, barriers": BARRIER,
}
SWEPT = ("block_random + residual", "full gradients, barriers")
MULTIPLES = (0.25, 0.5, 2, 4, 8, 32)
BATCHES = (8, 16, 32)  # Sequences a step; the config has 4.


def measure(args: argparse.Namespace, way: str, gbps: float, batch: int, turn: int) -> dict:
    """Run a few steps and return the medians."""
    plain = "".join(c if c.isalnum() else "_" for c in way)
    folder = args.out / f"{plain}_{gbps:.4g}_{batch}_{turn}"
    steps = max(8, args.steps * 4 // batch)
    overrides = {**WAYS[way], "train.steps": steps, "train.warmup_steps": 0, "data.eval": "[]",
                 "train.micro_batch": batch, "trace": "false",
                 **link_overrides(gbps)}  # fmt: skip
    run = train(args.config, folder, overrides, log=folder.with_suffix(".log"))
    point = {"way": way, "gbps": gbps, "batch": batch, "turn": turn, "seconds": run.step_seconds,
             "stall_share": run.stall_share, "d2h": run.bytes_per_step("d2h"),
             "h2d": run.bytes_per_step("h2d")}  # fmt: skip
    print(json.dumps(point), flush=True)
    return point


def median_seconds(points: list[dict], way: str, gbps: float) -> float:
    """Return the median over turns of a way's step time, at a link rate and the config's batch."""
    batch = min(p["batch"] for p in points)
    chosen = (way, gbps, batch)
    return statistics.median(
        p["seconds"] for p in points if (p["way"], p["gbps"], p["batch"]) == chosen
    )


def crossover(points: list[dict]) -> float | None:
    """Return the link rate at which full-gradient offload is as fast as the subspace, or None.

    Interpolates the ratio of step times linearly in the logarithm of the rate. None means that the
    sweep does not reach such a rate.
    """
    rates = sorted({p["gbps"] for p in points if p["way"] in SWEPT})
    ratios = [median_seconds(points, SWEPT[1], r) / median_seconds(points, SWEPT[0], r)
              for r in rates]  # fmt: skip
    for place in range(len(rates) - 1):
        low, high = ratios[place], ratios[place + 1]
        if low > 1 >= high:
            part = (low - 1) / (low - high)
            return rates[place] * math.exp(part * math.log(rates[place + 1] / rates[place]))
    return None


def ratios_to_native(points: list[dict], way: str, batch: int, gbps: float) -> list[float]:
    """Return the ratio to native in each turn."""

    def seconds(name: str) -> dict[int, float]:
        return {p["turn"]: p["seconds"] for p in points
                if (p["way"], p["batch"], p["gbps"]) == (name, batch, gbps)}  # fmt: skip

    native, mine = seconds("native"), seconds(way)
    return [mine[turn] / native[turn] for turn in mine]


def table(result: dict) -> str:
    """Format ratios to native per turn at the config's rate, then the sweeps, as Markdown."""
    points, base = result["points"], result["base_gbps"]
    smallest = min(p["batch"] for p in points)
    rows = ["| way | ratio to native, median (spread over turns) | stall share |", "|---|---|---|"]
    for way in WAYS:
        if way == "native" or not any(p["way"] == way for p in points):
            continue
        ratios = ratios_to_native(points, way, smallest, base)
        stall = statistics.median(
            p["stall_share"] for p in points if (p["way"], p["gbps"]) == (way, base)
        )
        rows.append(f"| {way} | {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                    f"{max(ratios):.3f}) | {100 * stall:.1f} % |")  # fmt: skip
    if all(p["gbps"] == base and p["batch"] == smallest for p in points):
        return "\n".join(rows)
    rows += ["", f"| link GB/s | {SWEPT[0]}, s/step | {SWEPT[1]}, s/step | ratio |",
             "|---|---|---|---|"]  # fmt: skip
    for rate in sorted({p["gbps"] for p in points if p["way"] in SWEPT}):
        ours, full = (median_seconds(points, way, rate) for way in SWEPT)
        rows.append(f"| {rate:.4g} | {ours:.3f} | {full:.3f} | {full / ours:.2f} |")
    where, top = result["crossover_gbps"], max(p["gbps"] for p in points)
    found = f"catch up at {where:.3g} GB/s" if where else f"do not catch up up to {top:.3g} GB/s"
    rows += ["", f"Full gradients {found}.", "",
             "| tokens a step | svd + residual, ratio to native |", "|---|---|"]  # fmt: skip
    for batch in sorted({p["batch"] for p in points}):
        ratio = statistics.median(ratios_to_native(points, "svd + residual", batch, base))
        rows.append(f"| {256 * batch} | {ratio:.3f} |")
    return "\n".join(rows)


def sweep(args: argparse.Namespace) -> dict:
    """Take turns at the config's rate, then at its multiples, then with more tokens."""
    config = yaml.safe_load(args.config.read_text())
    base, batch = config["device"]["link"]["d2h_gbps"], config["train"]["micro_batch"]
    points = [
        measure(args, way, base, batch, turn) for turn in range(args.rounds) for way in args.ways
    ]
    for turn in range(args.sweep_rounds):
        for multiple in args.multiples:
            points += [measure(args, way, base * multiple, batch, turn) for way in SWEPT]
        for larger in BATCHES:
            points += [measure(args, way, base, larger, turn)
                       for way in ("native", "svd + residual")]  # fmt: skip
    return {**provenance(), "base_gbps": base, "steps": args.steps,
            "crossover_gbps": crossover(points) if args.sweep_rounds else None,
            "points": points}  # fmt: skip


def main() -> None:
    """Sweep, or print the recorded points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs/link_sweep")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--sweep-rounds", type=int, default=1, help="0: no sweeps")
    parser.add_argument("--multiples", type=float, nargs="+", default=MULTIPLES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--name", default="link_sweep", help="name of the sweep in the file")
    parser.add_argument("--table", action="store_true", help="print NAME as tables")
    args = parser.parse_args()
    if args.table:
        result = read_documents(args.results)[args.name]
    else:
        result = sweep(args)
        append_row(args.results, {"name": args.name, **result})
    print(table(result))


if __name__ == "__main__":
    main()
