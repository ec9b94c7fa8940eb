"""Tables of the winners, seed by seed, on every model and shift."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from experiments.fidelity.stages import Results
from experiments.fidelity.tables import number, shares, spread, table
from experiments.fidelity.train_one import Job
from experiments.offload_codec.rows import (
    BASELINES,
    SEEDS,
    SETTINGS,
    WINNERS,
    Row,
    Setting,
    best_job,
    called,
    engine_job,
)

FIDELITY = Path(__file__).resolve().parents[1] / "fidelity" / "results.jsonl"


def headline(results: Results) -> str:
    """Tabulate the winners in every setting, beside the share that the subspace engine keeps."""
    lines = []
    for row in (*BASELINES[1:], *WINNERS):
        shown = [share_at(results, s, best_job(results, s, row)) for s in SETTINGS]
        lines.append([*called(row), *shown])
    shown = [share_at(results, s, engine_job(results, s)) for s in SETTINGS]
    lines.append([f"the engine: {WINNERS[0][0]}", *called(WINNERS[0])[1:], *shown])
    for method in ("svd+residual+factored_v", "block_random+residual+factored_v", "none+residual",
                   "block_random"):  # fmt: skip
        shown = [fidelity_share(setting, method) for setting in SETTINGS]
        lines.append([f"fidelity: {method}", "0.25", "never", *shown])
    return table(("codec", "f", "redraw", *(f"{m}, {s}" for m, s in SETTINGS)), lines)


def share_at(results: Results, setting: Setting, job: Job | None) -> str:
    """Share of AdamW's gain, seed by seed; "-" while a fine-tune is missing."""
    native = best_job(results, setting, BASELINES[0])
    if job is None or native is None:
        return "-"
    pairs = [(j, replace(native, seed=j.seed)) for j in done_seeds(results, job)]
    pairs = [(j, n) for j, n in pairs if results.has(n)]
    if not pairs:
        return "-"
    return spread(shares(results, *map(list, zip(*pairs, strict=True))), ".3f")


def done_seeds(results: Results, job: Job) -> list[Job]:
    """Return the finished jobs, one for each seed."""
    return [j for j in (replace(job, seed=seed) for seed in SEEDS) if results.has(j)]


def fidelity_share(setting: Setting, method: str) -> str:
    """Share of the subspace engine at its best rate, from experiments/fidelity and its AdamW."""
    theirs, (model, shift) = Results(FIDELITY), setting

    def tuned(name: str) -> Job | None:
        job = Job(model, shift, name, 0.25, 0.0, 0)
        rate = theirs.tuned_rate(job, (1e-3, 2e-3, 4e-3))
        return None if rate is None else replace(job, lr=rate)

    mine, native = tuned(method), tuned("adamw")
    if mine is None or native is None:
        return "-"
    jobs = [replace(mine, seed=seed) for seed in SEEDS]
    natives = [replace(native, seed=seed) for seed in SEEDS]
    if not all(map(theirs.has, [*jobs, *natives])):
        return "-"
    return spread(shares(theirs, jobs, natives), ".3f")


def paired(results: Results) -> str:
    """Tabulate losses of winners less AdamW's and the first winner's, over seeds and settings."""
    others = {"adamw": BASELINES[0], "identity": BASELINES[1]}
    others |= {" ".join(called(WINNERS[0])): WINNERS[0]} if WINNERS else {}
    lines = []
    for row in (BASELINES[1], *WINNERS):
        cells = []
        for other in others.values():
            found = differences(results, row, other)
            cells.append("-" if row == other or len(found) < 2 else mean_and_error(found))
        lines.append([*called(row), *cells])
    return table(("codec", "f", "redraw", *(f"less {name}" for name in others)), lines)


def differences(results: Results, row: Row, other: Row) -> list[float]:
    """Return differences of loss, with equal setting and seed, as shares of AdamW's gain there."""
    found = []
    for setting in SETTINGS:
        jobs = [best_job(results, setting, r) for r in (row, other, BASELINES[0])]
        if None in jobs:
            continue
        for seed in SEEDS:
            here = [replace(job, seed=seed) for job in jobs]
            if all(map(results.has, here)):
                mine, theirs = shares(results, here[:2], [here[2]] * 2)
                found.append(mine - theirs)
    return found


def mean_and_error(found: list[float]) -> str:
    """Format a mean, its standard error and the number of values."""
    error = statistics.stdev(found) / len(found) ** 0.5
    return f"{number(statistics.mean(found), '+.3f')} ± {error:.3f} ({len(found)})"
