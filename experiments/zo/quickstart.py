"""Gains of zeroth-order training on the quickstart, by noise and tier, and native AdamW.

    python -m experiments.zo.quickstart            # the runs that quickstart.json lacks
    python -m experiments.zo.quickstart --clock    # then, on a quiet machine: seconds of a step
    python -m experiments.zo.quickstart --table    # both, as the tables of README.md

A run is `sluiceway train configs/quickstart_zo.yaml` with overrides; text, tokens and held-out part
are the same for all. Its learning rate is the one of RATES that ends lowest on a separate seed,
which no other table uses. The default noise runs with all seeds on the tiers that stream, and once
on the device, to show that tiers have the same bits. Other noises run on the device. All noises
have further seeds on the device, which pair them. Two runs go at a time, so their seconds mean
nothing: `--clock` takes turns of a few steps of each way, one after another. Seconds of a run are
its steps times the median of these.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from experiments.harness import REPOSITORY, commit_here, read_rows, write_rows
from experiments.quickstart.run_folder import RunFolder, train
from experiments.same_bits.checkouts import ONE_THREAD, machine

RESULTS, CLOCK = (
    Path(__file__).with_name("quickstart.json"),
    Path(__file__).with_name("quickstart_clock.json"),
)
CONFIG = REPOSITORY / "configs/quickstart_zo.yaml"
NOISES = ("rademacher", "gaussian", "lowrank")
DEFAULT = "rademacher"  # The choice of `auto`, and the noise of the tiers that stream.
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
STEPS = 700
PICK_SEED, SEEDS, FURTHER_SEEDS = 100, (0, 1, 2), (3, 4, 5, 6, 7)
NATIVE_RATE = 2e-3  # The best rate of experiments/quickstart/native_lr.json.
NATIVE_STEPS = (15, 50, 150, 500)
NEW_BASE = 350  # Steps to a new base: a run on disk makes one in its middle and one at its end.
CLOCK_STEPS, CLOCK_ROUNDS = 12, 5
SPAN = 25  # Steps in each root mean square of g.


@dataclass(frozen=True)
class Case:
    """A run; native AdamW has None for noise and tier."""

    lr: float
    seed: int
    steps: int = STEPS
    noise: str | None = None
    tier: str | None = None

    @property
    def way(self) -> str:
        """Name in the tables."""
        return "AdamW" if self.noise is None else f"{self.noise}, {self.tier}"

    def overrides(self, folder: Path, evaluations: int) -> dict[str, object]:
        """Config changes for a run in a folder with `evaluations` evaluations after the first."""
        changes: dict[str, object] = {
            "train.lr": self.lr, "train.seed": self.seed, "train.steps": self.steps,
            "train.eval_every": max(1, self.steps // evaluations), "train.save_every": 0,
            "trace": "false", "model.path": REPOSITORY / "experiments/quickstart/model",
        }  # fmt: skip
        if self.noise is None:
            return changes | {"engine": {"kind": "native"}, "train.max_norm": 1.0}
        changes |= {"engine.noise": self.noise, "engine.tier": self.tier}
        if self.tier == "disk":
            changes |= {"engine.consolidate": NEW_BASE, "store.path": folder / "store"}
        return changes


def run(case: Case, evaluations: int = 4) -> RunFolder:
    """Run a case in a folder that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    overrides = case.overrides(folder, evaluations)
    environment = {**os.environ, **ONE_THREAD}
    return train(CONFIG, folder / "run", overrides, folder / "log", environment=environment)


def row_of(case: Case, done: RunFolder) -> dict[str, Any]:
    """Row of a run in the file."""
    found = {key: 0 for line in done.steps for key in line.get("bytes") or {}}
    for key in found:
        found[key] = sum((line.get("bytes") or {}).get(key, 0) for line in done.steps)
    g = [value for line in done.steps if "zo" in line for value in line["zo"]["g"]]
    return {
        **asdict(case),
        "commit": commit_here(),
        "way": case.way,
        "evals": done.evals,
        "bytes_of_run": found,
        "g_rms": [
            math.sqrt(statistics.fmean(x * x for x in g[i : i + SPAN]))
            for i in range(0, len(g), SPAN)
        ],
    }


def measure(cases: list[Case]) -> None:
    """Run what the file lacks, two at a time."""
    rows = read_rows(RESULTS)
    seen = {tuple(row[key.name] for key in fields(Case)) for row in rows}
    missing = [case for case in cases if tuple(asdict(case).values()) not in seen]
    with ThreadPoolExecutor(2) as pool:
        # pool.map() yields the results in order.
        for case, done in zip(missing, pool.map(run, missing), strict=True):
            rows.append(row_of(case, done))
            write_rows(RESULTS, rows, machine=machine())
            before, after = done.loss_before, done.loss_after
            print(f"{case}: {before:.4f} to {after:.4f}", flush=True)


def picks(rates: Sequence[float], noises: Sequence[str] = NOISES) -> list[Case]:
    """Return the runs that choose a learning rate."""
    return [Case(lr, PICK_SEED, noise=noise, tier="device") for noise in noises for lr in rates]


def at_the_edge() -> list[str]:
    """Return noises whose best rate is the largest but one; the largest has not run so far."""
    rows = read_rows(RESULTS)
    return [noise for noise in NOISES if picked(rows, noise) == RATES[-2]]


def picked(rows: list[dict[str, Any]], noise: str) -> float:
    """Return the chosen learning rate of a noise."""
    of_noise = [row for row in rows if row["noise"] == noise and row["seed"] == PICK_SEED]
    return min(of_noise, key=lambda row: row["evals"][-1][1])["lr"]


def finals() -> list[Case]:
    """List all other runs: the tiers that stream, then noises, then AdamW."""
    rows = read_rows(RESULTS)
    rates = {noise: picked(rows, noise) for noise in NOISES}
    places = [(DEFAULT, tier) for tier in ("host", "disk")]
    places += [(noise, "device") for noise in NOISES if noise != DEFAULT]
    cases = [Case(rates[n], seed, noise=n, tier=tier) for n, tier in places for seed in SEEDS]
    cases.append(Case(rates[DEFAULT], SEEDS[0], noise=DEFAULT, tier="device"))
    return cases + [Case(NATIVE_RATE, seed, steps) for steps in NATIVE_STEPS for seed in SEEDS]


def further() -> list[Case]:
    """Return the further runs that compare noises, beside those of SEEDS."""
    rows = read_rows(RESULTS)
    rates = {noise: picked(rows, noise) for noise in NOISES}
    return [Case(rates[n], s, noise=n, tier="device") for s in FURTHER_SEEDS for n in NOISES]


def clock() -> None:
    """Measure seconds of a step of each way, in turns."""
    cases = [Case(1e-3, 0, CLOCK_STEPS, noise, "device") for noise in NOISES]
    cases += [Case(1e-3, 0, CLOCK_STEPS, noise, "host") for noise in NOISES]
    cases.append(Case(1e-3, 0, CLOCK_STEPS, DEFAULT, "disk"))
    cases.append(Case(NATIVE_RATE, 0, CLOCK_STEPS))
    rows = []
    for number in range(CLOCK_ROUNDS):
        for case in cases:
            done = run(case, 1)
            h2d = sum((line.get("bytes") or {}).get("h2d", 0) for line in done.steps)
            row = {"round": number, "way": case.way, "seconds": done.step_seconds}
            rows.append({**row, "h2d": h2d / CLOCK_STEPS})
        write_rows(CLOCK, rows, machine=machine())
        print(f"round {number + 1} of {CLOCK_ROUNDS}: done", flush=True)


def seconds_by_way() -> dict[str, float]:
    """Return median seconds of a step by way."""
    rows = read_rows(CLOCK)
    return {
        way: statistics.median(row["seconds"] for row in rows if row["way"] == way)
        for way in dict.fromkeys(row["way"] for row in rows)
    }


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return a mean and its standard error."""
    if len(values) == 1:
        return values[0], float("nan")
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def groups() -> Iterator[tuple[list[dict[str, Any]], list[float]]]:
    """Yield runs that differ by their seed alone, and the gain of each."""
    rows = [row for row in read_rows(RESULTS) if row["seed"] != PICK_SEED]
    for key in dict.fromkeys((row["way"], row["steps"]) for row in rows):
        of_key = [row for row in rows if (row["way"], row["steps"]) == key]
        yield of_key, [row["evals"][0][1] - row["evals"][-1][1] for row in of_key]


def gains() -> str:
    """Format one line for each way: gain over seeds, and its cost."""
    head = (
        "| way | lr | steps | gain, nats | standard error | s a step | s | link, KiB a step "
        "| disk read, KiB a step | written a step, KiB | new bases, MiB a run |"
    )
    seconds, lines = seconds_by_way(), [head, "|---" * head.count(" | ") + "|---|"]
    for rows, gained in groups():
        mean, error = mean_and_error(gained)
        first, steps = rows[0], rows[0]["steps"]
        crossed = first["bytes_of_run"]
        link = (crossed.get("h2d", 0) + crossed.get("d2h", 0)) / steps / 1024
        read, written = (
            crossed.get(f"disk_{way}", 0) / steps / 1024 for way in ("read", "written")
        )
        each = seconds.get(first["way"])
        took = "- | -" if each is None else f"{each:.3f} | {each * steps:.0f}"
        spread = "one seed" if len(rows) == 1 else f"{error:.4f}"
        bases = crossed.get("consolidated", 0) / 2**20
        lines.append(
            f"| {first['way']} | {first['lr']:g} | {steps} | {mean:.4f} | {spread} | {took} "
            f"| {link:,.0f} | {read:,.0f} | {written:g} | {bases:.1f} |"
        )
    return "\n".join(lines)


def moved() -> str:
    """Bytes over the link in a step of each noise, with weights in host memory."""
    rows = {row["way"]: row.get("h2d") for row in read_rows(CLOCK)}
    found = {noise: rows.get(f"{noise}, host") for noise in NOISES}
    said = ", ".join(f"{noise} {h2d / 1024:,.0f}" for noise, h2d in found.items() if h2d)
    return f"Over the link with tier host, KiB a step: {said or 'not measured yet'}."


def paired() -> str:
    """Gains of other noises over the default, by seeds that both have; tiers are alike."""
    rows = [r for r in read_rows(RESULTS) if r["noise"] is not None and r["seed"] != PICK_SEED]
    gained = {
        noise: {
            r["seed"]: r["evals"][0][1] - r["evals"][-1][1] for r in rows if r["noise"] == noise
        }
        for noise in NOISES
    }
    lines = [f"| noise | beyond {DEFAULT}, nats | standard error | seeds |", "|---" * 4 + "|"]
    for noise in NOISES:
        seeds = sorted(gained[noise].keys() & gained[DEFAULT].keys())
        if noise != DEFAULT and seeds:
            mean, error = mean_and_error([gained[noise][s] - gained[DEFAULT][s] for s in seeds])
            lines.append(f"| {noise} | {mean:+.4f} | {error:.4f} | {len(seeds)} |")
    return "\n".join(lines)


def curves() -> str:
    """Tabulate the gain of each way by step, as means over seeds."""
    zo = [rows for rows, _ in groups() if rows[0]["noise"] is not None]
    if not zo:
        return "no run of another seed yet"
    steps = [step for step, _ in zo[0][0]["evals"][1:]]
    lines = ["| way | " + " | ".join(f"step {step}" for step in steps) + " |"]
    lines.append("|---" * (1 + len(steps)) + "|")
    for rows in zo:
        cells = [
            f"{statistics.mean(r['evals'][0][1] - r['evals'][i + 1][1] for r in rows):.4f}"
            for i in range(len(steps))
        ]
        lines.append(f"| {rows[0]['way']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rates() -> str:
    """Tabulate held-out losses of the runs that choose rates."""
    rows = [row for row in read_rows(RESULTS) if row["seed"] == PICK_SEED]
    lines = ["| noise | " + " | ".join(f"lr {lr:g}" for lr in RATES) + " |"]
    lines.append("|---" * (1 + len(RATES)) + "|")
    for noise in NOISES:
        found = {row["lr"]: row["evals"][-1][1] for row in rows if row["noise"] == noise}
        cells = (f"{found[lr]:.4f}" if lr in found else "" for lr in RATES)
        lines.append(f"| {noise} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and write, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--clock", action="store_true", help="measure seconds of a step only")
    args = parser.parse_args()
    if args.clock:
        clock()
    elif not args.table:
        measure(picks(RATES[:-1]))
        measure(picks(RATES[-1:], at_the_edge()))
        measure(finals())
        measure(further())
    for text in (rates(), gains(), moved(), paired(), curves()):
        print(f"\n{text}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sluiceway-quickstart-zo-") as name:
        SCRATCH = Path(name)
        main()
