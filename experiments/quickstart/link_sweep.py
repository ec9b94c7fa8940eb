"""Step time over link rates: Sluiceway, full-gradient offload with barriers, and native.

    python experiments/quickstart/link_sweep.py

Cores are pinned as the config says: torch and the device streams on one, link and host lanes on
the other, native on the same one core. The ways take turns (A B C A B C ...), so a disturbance
hits all of them. At the config's own link rate every way runs `--rounds` times; then both
offloaders run at multiples of that rate, to find the rate at which the full gradients catch up.
Writes link_sweep.json; `--table` prints it for the README.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import yaml
from demo import BARRIER, NATIVE
from run_folder import REPOSITORY, provenance, train

RESULTS = Path(__file__).parent / "link_sweep.json"
WAYS = {"native": NATIVE, "subspace edf": {}, "identity barrier": BARRIER}
OFFLOADERS = ("subspace edf", "identity barrier")
MULTIPLES = (0.25, 0.5, 2, 4, 8, 32)


def measure(args: argparse.Namespace, way: str, gbps: float, turn: int) -> dict:
    """Run a few steps and return the medians."""
    folder = args.out / f"{way.replace(' ', '_')}_{gbps:.4g}_{turn}"
    overrides = {**WAYS[way], "train.steps": args.steps, "train.warmup_steps": 0, "data.eval": "[]",
                 "trace": "false", "device.link.d2h_gbps": gbps,
                 "device.link.h2d_gbps": gbps}  # fmt: skip
    run = train(args.config, folder, overrides, log=folder.with_suffix(".log"))
    point = {"way": way, "gbps": gbps, "turn": turn, "seconds": run.step_seconds,
             "stall_share": run.stall_share, "d2h": run.bytes_per_step("d2h"),
             "h2d": run.bytes_per_step("h2d")}  # fmt: skip
    print(json.dumps(point), flush=True)
    return point


def median_seconds(points: list[dict], way: str, gbps: float) -> float:
    """Median over the turns of a way's step time at a link rate."""
    return statistics.median(p["seconds"] for p in points if (p["way"], p["gbps"]) == (way, gbps))


def crossover(points: list[dict]) -> float | None:
    """Link rate at which full-gradient offload is as fast as the subspace; None: not in range.

    Interpolates the ratio of step times linearly in the logarithm of the rate.
    """
    rates = sorted({p["gbps"] for p in points if p["way"] != "native"})
    ratios = [median_seconds(points, OFFLOADERS[1], r) / median_seconds(points, OFFLOADERS[0], r)
              for r in rates]  # fmt: skip
    for place in range(len(rates) - 1):
        low, high = ratios[place], ratios[place + 1]
        if low > 1 >= high:
            part = (low - 1) / (low - high)
            return rates[place] * math.exp(part * math.log(rates[place + 1] / rates[place]))
    return None


def table(result: dict) -> str:
    """Markdown: ratios to native per turn at the config's rate, then the sweep."""
    points, base = result["points"], result["base_gbps"]
    native = {p["turn"]: p["seconds"] for p in points if p["way"] == "native"}
    rows = ["| way | ratio to native, median (spread over turns) | stall share |", "|---|---|---|"]
    for way in OFFLOADERS:
        mine = [p for p in points if p["way"] == way and p["gbps"] == base]
        ratios = [p["seconds"] / native[p["turn"]] for p in mine]
        stall = statistics.median(p["stall_share"] for p in mine)
        rows.append(f"| {way} | {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                    f"{max(ratios):.3f}) | {100 * stall:.1f} % |")  # fmt: skip
    rows += [
        "",
        "| link GB/s | subspace edf, s/step | identity barrier, s/step | ratio |",
        "|---|---|---|---|",
    ]
    for rate in sorted({p["gbps"] for p in points if p["way"] != "native"}):
        ours, full = (median_seconds(points, way, rate) for way in OFFLOADERS)
        rows.append(f"| {rate:.4g} | {ours:.3f} | {full:.3f} | {full / ours:.2f} |")
    where, top = result["crossover_gbps"], max(p["gbps"] for p in points)
    found = f"catch up at {where:.3g} GB/s" if where else f"do not catch up up to {top:.3g} GB/s"
    rows += ["", f"Full gradients {found}."]
    return "\n".join(rows)


def sweep(args: argparse.Namespace) -> dict:
    """Take turns at the config's rate, then at its multiples."""
    base = yaml.safe_load(args.config.read_text())["device"]["link"]["d2h_gbps"]
    points = [measure(args, way, base, turn) for turn in range(args.rounds) for way in WAYS]
    for turn in range(args.sweep_rounds):
        for multiple in args.multiples:
            points += [measure(args, way, base * multiple, turn) for way in OFFLOADERS]
    return {**provenance(), "base_gbps": base, "steps": args.steps,
            "crossover_gbps": crossover(points), "points": points}  # fmt: skip


def main() -> None:
    """Sweep, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs/link_sweep")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweep-rounds", type=int, default=1)
    parser.add_argument("--multiples", type=float, nargs="+", default=MULTIPLES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print link_sweep.json as tables")
    args = parser.parse_args()
    if args.table:
        result = json.loads(args.results.read_text())
    else:
        result = sweep(args)
        args.results.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
