"""Define a fine-tune of the regimes, and run it to get its row.

A run is in a *setting* (start, text, tokens a step, steps, dtype) and of a *way* (method, f,
refresh). Runs of PICK_SEED are evaluated on `pick` and choose a rate. All other runs are evaluated
on `final` alone, so no choice can depend on it. Equal seeds have equal starts and text orders in
every way.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from experiments.fidelity.tasks import LENGTH, load_text
from experiments.fidelity.train_one import LOOKS, Pace, digest_of, fine_tune, mean_loss
from experiments.regimes.starts import fingerprint, loss_before, start_model
from experiments.regimes.ways import prepared, why_not

PICK_SEED = 100  # Seed of runs that no table shows.
# Steps; a shorter run has no evaluations during training, as they would cost as much as it does.
CURVE_FROM = 1000


@dataclass(frozen=True)
class Setting:
    """Setting in which methods are compared; every question starts from the defaults."""

    start: str = "small"  # A key of starts.STARTS.
    shift: str = "perl"
    tokens: int = 256  # Tokens a step.
    accumulate: int = 1  # Micro-batches that share these tokens.
    steps: int = 200
    dtype: str = "fp32"  # Type of the weights.

    def __post_init__(self) -> None:
        if self.tokens % (self.accumulate * LENGTH):
            raise ValueError(
                f"Setting: {self.tokens} tokens in {self.accumulate} micro-batches, expected a "
                f"multiple of {self.accumulate * LENGTH}"
            )

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.tokens // (self.accumulate * LENGTH)

    @property
    def name(self) -> str:
        """Name the differences from the usual one."""
        texts = {
            "start": f"{self.start} start",
            "shift": self.shift,
            "tokens": f"{self.tokens:,} tokens",
            "accumulate": f"{self.accumulate} micro-batches",
            "steps": f"{self.steps:,} steps",
            "dtype": self.dtype,
        }
        usual = Setting()
        found = [texts[f.name] for f in fields(self)
                 if getattr(self, f.name) != getattr(usual, f.name)]  # fmt: skip
        return ", ".join(found) or "usual"


@dataclass(frozen=True)
class Way:
    """Method that trains a setting; `ways.py` lists the methods."""

    method: str
    ratio: float = 0.25
    refresh: str = "never"

    @property
    def name(self) -> str:
        """Describe the method and the fields that differ from the defaults."""
        f = "" if self.ratio == 0.25 else f", f = {self.ratio:g}"
        refreshed = "" if self.refresh == "never" else f", refreshed every {self.refresh}"
        return self.method + f + refreshed


@dataclass(frozen=True)
class Run(Setting, Way):
    """A fine-tune; equal runs have equal keys."""

    lr: float = 0.0
    seed: int = PICK_SEED

    def __post_init__(self) -> None:
        super().__post_init__()
        if (reason := why_not(self.method, self.dtype)) is not None:
            raise ValueError(f"Run: {self.method} with {self.dtype} weights: {reason}")

    @property
    def key(self) -> str:
        """Key of a row."""
        return digest_of(self)

    @property
    def part(self) -> str:
        """Held-out text for the run's evaluation."""
        return "pick" if self.seed == PICK_SEED else "final"

    @property
    def setting(self) -> Setting:
        """The setting of the run, without the rest."""
        return Setting(**{f.name: getattr(self, f.name) for f in fields(Setting)})

    @property
    def way(self) -> Way:
        """The method of the run, without the rest."""
        return Way(**{f.name: getattr(self, f.name) for f in fields(Way)})

    @property
    def name(self) -> str:
        """Name for people."""
        return f"{self.setting.name}: {self.way.name}, lr {self.lr:g}, seed {self.seed}"


def run_of(setting: Setting, way: Way) -> Run:
    """Return a run without a rate, with the seed that chooses the rate."""
    return Run(**asdict(setting), **asdict(way))


def seeds_of(run: Run, count: int, first: int = 0) -> list[Run]:
    """Return the run with seeds that chose no rate."""
    return [replace(run, seed=seed) for seed in range(first, first + count)]


def asked_for(row: dict[str, Any]) -> Run:
    """Return the run that a row came from."""
    return Run(**{f.name: row[f.name] for f in fields(Run)})


def measured(run: Run) -> dict[str, Any]:
    """Train and evaluate; `core_seconds` is the processor time of both."""
    began = time.process_time()
    torch.manual_seed(run.seed)
    text, model = load_text(run.shift), start_model(run.start, run.seed, run.dtype)
    start, held_out = fingerprint(model), getattr(text, run.part)
    looks = LOOKS if run.steps >= CURVE_FROM else 0
    # An engine measures the norm of cores, and a residual has none: no clip would suit all ways.
    pace = Pace(run.lr, run.steps, run.seed, run.micro_batch, run.accumulate, looks, max_norm=None)
    with prepared(model, run) as t:
        done = fine_tune(t, text, pace)
        after = mean_loss(t.model, held_out)
        cost = {"device_state_bytes": t.state_bytes, "link_bytes": t.link_bytes}
    of_start = run.seed if run.start == "scratch" else 0  # Other starts ignore the seed.
    before = loss_before(run.start, of_start, run.dtype, run.shift, run.part)
    return {
        **asdict(run), "before": {run.part: before}, "after": {run.part: after}, "start_is": start,
        "order_is": f"{text.train.fingerprint}/{run.seed}", "held_out_is": held_out.fingerprint,
        **done, **cost,
        "core_seconds": time.process_time() - began,
    }  # fmt: skip
