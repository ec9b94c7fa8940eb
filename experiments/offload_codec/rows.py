"""Plan the fine-tunes of the experiment from the results so far."""

from __future__ import annotations

from dataclasses import replace

from experiments.fidelity.stages import MODELS, RATES, SHIFTS, Results, tuned
from experiments.fidelity.train_one import Job
from experiments.offload_codec.through_engine import PREFIX

Row = tuple[str, float, str]  # Codec, f, redraw.
Setting = tuple[str, str]  # Model, shift.
CODECS = ("block_random", "svd", "sparse_learned")
RATIOS = (0.25, 0.5)
REDRAWS = ("never", "50", "1")  # Steps between two draws.
# The better one is at an edge, so the plan also tries the rate beyond it.
FIRST_RATES = RATES[1:3]
ADAMW_RATE = 2e-3  # The best of three in every setting of experiments/fidelity, and of the screen.
SCREENED = (("small", "prose"), ("small", "cpp"))
SETTINGS = tuple((model, shift) for model in MODELS for shift in SHIFTS)
SEEDS = (0, 1, 2)
LONG = 1000
# Codec, f, redraw: rows that the screen leaves for more seeds to decide.
WINNERS: tuple[Row, ...] = (
    ("block_random", 0.5, "never"),
    ("block_random", 0.5, "50"),
    ("block_random", 0.25, "50"),
)


def job_of(setting: Setting, row: Row, seed: int = 0) -> Job:
    """Return a fine-tune without a rate."""
    (model, shift), (method, ratio, redraw) = setting, row
    return Job(model, shift, method, ratio, 0.0, seed, refresh=redraw)


BASELINES = (("adamw", 1.0, "never"), ("identity", 1.0, "never"))


def called(row: Row) -> list[str]:
    """Format codec, f and redraw."""
    method, ratio, redraw = row
    if row in BASELINES:
        return [method, "-", "-"]
    return [method, f"{ratio:g}", redraw if redraw == "never" else f"every {redraw}"]


def costly(row: Row) -> bool:
    """Tell whether drawing costs more than training; such rows get one rate."""
    method, ratio, redraw = row
    return redraw == "1" and (method == "sparse_learned" or (method == "svd" and ratio > 0.25))


def _rate_from(row: Row) -> Row:
    """Return the row that lends its rate to a costly one."""
    method, ratio, _ = row
    return (method, 0.25, "1") if method == "svd" else (method, ratio, "50")


def row_jobs(results: Results, setting: Setting, row: Row) -> list[Job]:
    """Return one job for each rate that is known to be needed."""
    job = job_of(setting, row)
    if row in BASELINES and setting not in SCREENED:
        return [replace(job, lr=ADAMW_RATE)]
    if not costly(row):
        return tuned(results, job, FIRST_RATES)
    rate = results.tuned_rate(job_of(setting, _rate_from(row)), FIRST_RATES)
    return [] if rate is None else [replace(job, lr=rate)]


def best_job(results: Results, setting: Setting, row: Row) -> Job | None:
    """Return the first seed at the best rate; None while that rate is unknown."""
    jobs = row_jobs(results, setting, row)
    if not jobs or not all(map(results.has, jobs)):
        return None
    return min(jobs, key=lambda job: results.loss(job, "pick"))


def screen(results: Results) -> list[Job]:
    """Jobs of every codec, f and redraw with one seed, cheap rows first."""
    rows = [(c, f, r) for c in CODECS for f in RATIOS for r in REDRAWS]
    rows = [*BASELINES, *sorted(rows, key=costly)]
    return [job for row in rows for setting in SCREENED for job in row_jobs(results, setting, row)]


def winners(results: Results) -> list[Job]:
    """Jobs of the winners on every model and shift, with two more seeds at the best rate."""
    jobs = []
    for setting in SETTINGS:
        for row in (*BASELINES, *WINNERS):
            jobs += row_jobs(results, setting, row)
            best = best_job(results, setting, row)
            if best is not None:
                jobs += [replace(best, seed=seed) for seed in SEEDS]
    return jobs


def engine(results: Results) -> list[Job]:
    """Jobs that repeat the first winner with the real engine at the simulation's rate."""
    jobs = [engine_job(results, setting) for setting in SETTINGS]
    return [replace(job, seed=seed) for job in jobs if job is not None for seed in SEEDS]


def engine_job(results: Results, setting: Setting) -> Job | None:
    """Return the engine's job with the first seed; None while the rate is unknown."""
    best = best_job(results, setting, WINNERS[0])
    return best and replace(best, method=PREFIX + best.method)


def long(results: Results) -> list[Job]:
    """Jobs of 1,000 steps with the first codec, which show whether redrawing matters later on.

    They take the rates that were best at 200 steps.
    """
    rows = [BASELINES[0], *((CODECS[0], RATIOS[-1], redraw) for redraw in REDRAWS)]
    best = [best_job(results, SCREENED[0], row) for row in rows]
    return [replace(job, steps=LONG) for job in best if job is not None]


STAGES = {"screen": screen, "long": long, "winners": winners, "engine": engine}
