"""The list of fine-tunes in the experiment, planned from the results so far."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.fidelity.train_one import Job, asked_for
from experiments.harness import read_rows

# The same rates for every method; the plan adds rates beyond an edge that is best.
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
LOWEST, HIGHEST = 2.5e-4, 6.4e-2
PLAIN = ("adamw", "adafactor", "lora8", "lora32")
BASELINES = ("galore", "galore+residual", "apollo", "topk_columns")
RANDOM_AND_FITTED = ("svd", "block_random", "block_pca", "count_sketch", "sparse_random")
CODEC_ROWS = (
    "none+residual",
    "none+sign",
    *RANDOM_AND_FITTED,
    *(f"{codec}+residual" for codec in RANDOM_AND_FITTED),
    "block_random+sign",
    "sparse_learned",
    *(f"{row}+{option}"
      for row in ("svd+residual", "block_random+residual")
      for option in ("unclipped", "factored_v", "unclipped+factored_v")),
    "none+residual+unclipped",
)  # fmt: skip
HEADLINE = ("adamw", "adafactor", "lora8", "lora32", "galore", "apollo", "none+residual",
            "block_random", "block_random+residual+factored_v",
            "svd+residual+factored_v")  # fmt: skip
# Keyed by the steps between a weight's residuals; a residual in each step needs every gradient.
ROLLING = {
    1: "block_random+residual",
    **{k: f"block_random+residual+fused+every{k}" for k in (2, 4, 8)},
    None: "block_random+fused",
}
MODELS, SHIFTS = ("small", "quickstart"), ("prose", "cpp")


class Found:
    """Finished fine-tunes, keyed by their jobs."""

    def __init__(self, runs: dict[str, dict]) -> None:
        self._found = runs

    def has(self, job: Job) -> bool:
        """Tell whether there is a result."""
        return job.key in self._found

    def loss(self, job: Job, part: str = "final") -> float:
        """Held-out loss after the fine-tune; infinite when the loss was not finite."""
        value = self._found[job.key]["after"][part]
        return value if value == value else float("inf")

    def of(self, job: Job) -> dict:
        """Return the result."""
        return self._found[job.key]

    def rows(self) -> Collection[dict]:
        """Return the rows of all fine-tunes."""
        return self._found.values()

    def best_rate(self, job: Job, rates: Iterable[float]) -> float | None:
        """Rate with the lowest loss on `pick`; None while one of `rates` is missing."""
        jobs = [replace(job, lr=rate) for rate in rates]
        if not all(map(self.has, jobs)):
            return None
        return min(jobs, key=lambda j: self.loss(j, "pick")).lr

    def tuned_rate(self, job: Job, rates: Iterable[float] = RATES) -> float | None:
        """Best rate, once it lies inside the range of tried rates; None until then."""
        tried = tried_rates(self, job, rates)
        best = self.best_rate(job, tried)
        if best is None or _beyond(best, tried) is not None:
            return None
        return best


class Results(Found):
    """Finished fine-tunes read from one file; of two rows of a fine-tune, the later one.

    `asked_for` finds the job of a row, whose key names it.
    """

    def __init__(self, path: Path, asked_for: Callable[[Mapping], Any] = asked_for) -> None:
        try:
            super().__init__({asked_for(row).key: row for row in read_rows(path)})
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: a line lacks {error}, a field of every run. Remove the line to repeat "
                "its run."
            ) from None


def _beyond(best: float, tried: list[float]) -> float | None:
    if best == min(tried) and best / 2 >= LOWEST:
        return best / 2
    if best == max(tried) and best * 2 <= HIGHEST:
        return best * 2
    return None


def tried_rates(results: Found, job: Job, rates: Iterable[float] = RATES) -> list[float]:
    """Return `rates`, plus each rate tried beyond an edge that was best."""
    tried = sorted(rates)
    while (best := results.best_rate(job, tried)) is not None:
        further = _beyond(best, tried)
        if further is None:
            break
        tried = sorted([*tried, further])
    return tried


def tuned(results: Found, job: Job, rates: Iterable[float] = RATES) -> list[Job]:
    """Return one job for each rate to try."""
    return [replace(job, lr=rate) for rate in tried_rates(results, job, rates)]


def _job(method: str, model: str = "small", shift: str = "prose", ratio: float = 0.25,
         steps: int = 200, refresh: str = "never") -> Job:  # fmt: skip
    return Job(model, shift, method, ratio, 0.0, 0, steps, refresh)


def screen(results: Results) -> list[Job]:
    """Jobs of every method on the small model and prose, at f = 1/4 with one seed."""
    rows = (*PLAIN, *BASELINES, *CODEC_ROWS)
    return [job for method in rows for job in tuned(results, _job(method))]


def best_codecs(results: Results, count: int = 4) -> list[str]:
    """Codecs of the screen ordered by their loss on `pick`; empty while the screen runs."""
    losses = {}
    for method in CODEC_ROWS:
        if method.startswith("none"):
            continue
        rate = results.tuned_rate(_job(method))
        if rate is None:
            return []
        losses[method] = results.loss(replace(_job(method), lr=rate), "pick")
    return sorted(losses, key=losses.get)[:count]


def ratios(results: Results) -> list[Job]:
    """Jobs at f = 1/8 and 1/2 for the best codecs, with three rates."""
    return [
        job
        for method in best_codecs(results)
        for ratio in (0.125, 0.5)
        for job in tuned(results, _job(method, ratio=ratio), RATES[:3])
    ]


def headline(results: Results) -> list[Job]:
    """Jobs of ten methods, two models and two texts: rates on seed 0, then two more seeds."""
    jobs = []
    for model in MODELS:
        for shift in SHIFTS:
            native = results.tuned_rate(_job("adamw", model, shift), RATES[:3])
            for method in HEADLINE:
                job = _job(method, model, shift)
                first = RATES[1:] if method.startswith("lora") else RATES[:3]
                jobs += tuned(results, job, first)
                best = results.tuned_rate(job, first)
                chosen = {rate for rate in (best, native) if rate is not None}
                jobs += [replace(job, lr=rate, seed=seed) for rate in sorted(chosen)
                         for seed in (0, 1, 2)]  # fmt: skip
    return jobs


def rolling(results: Results) -> list[Job]:
    """Jobs of AdamW and residuals in turns at f = 1/4, 1/2: rates on seed 0, then two more."""
    jobs = []
    for model in MODELS:
        for method, ratio in (("adamw", 0.25), *itertools.product(ROLLING.values(), (0.25, 0.5))):
            job = _job(method, model, ratio=ratio)
            jobs += tuned(results, job, RATES[:3])
            best = results.tuned_rate(job, RATES[:3])
            jobs += [replace(job, lr=best, seed=seed) for seed in (1, 2) if best is not None]
    return jobs


def long(results: Results) -> list[Job]:
    """Jobs of 1,000 steps with three seeds, for the five best methods of the screen."""
    losses = {}
    for method in HEADLINE:
        rate = results.tuned_rate(_job(method), tried_rates(results, _job(method)))
        if rate is None:
            return []
        losses[method] = results.loss(replace(_job(method), lr=rate), "pick")
    best = sorted(losses, key=losses.get)[:5]
    jobs = []
    for method in dict.fromkeys(["adamw", *best]):
        job = _job(method, steps=1000)
        jobs += tuned(results, job, (1e-3, 2e-3))
        rate = results.tuned_rate(job, (1e-3, 2e-3))
        jobs += [replace(job, lr=rate, seed=seed) for seed in (1, 2) if rate is not None]
    return jobs


def refresh(results: Results) -> list[Job]:
    """Jobs of 400 steps that refresh never, every 50 or 200 steps, or by the paper's trigger."""
    jobs = []
    for method in ("svd+residual", "sparse_learned"):
        rate = results.tuned_rate(_job(method))
        if rate is None:
            continue
        jobs += [replace(_job(method, steps=400, refresh=when), lr=rate)
                 for when in ("never", "50", "200", "bias")]  # fmt: skip
    return jobs


STAGES: dict[str, Callable[[Results], list[Job]]] = {
    "screen": screen,
    "ratios": ratios,
    "headline": headline,
    "rolling": rolling,
    "refresh": refresh,
    "long": long,
}


def median_and_range(values: list[float]) -> tuple[float, float, float]:
    """Return median, smallest and largest value."""
    return statistics.median(values), min(values), max(values)
