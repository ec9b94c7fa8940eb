"""Compare AdamW's states in fewer bytes with fp32 ones, by the loss that training ends at.

    python -m experiments.state_codec.run            # all fine-tunes, two at a time; resumable
    python -m experiments.state_codec.run --count    # what is done and what is left
    python -m experiments.state_codec.run --table    # writes RESULTS.md

Each fine-tune is a row of results.jsonl. Ctrl-C loses the fine-tunes that are running.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from sluiceway import OffloadAdamW
from sluiceway.text.batches import Batch, Batches
from torch import nn
from torch.func import functional_call

from experiments.fidelity.methods import WEIGHT_DECAY
from experiments.fidelity.stages import MODELS, SHIFTS, Results
from experiments.fidelity.tables import number, table
from experiments.fidelity.tasks import load_model, load_text
from experiments.fidelity.train_one import MAX_NORM, MICRO_BATCH, Job, mean_loss, rate_factor
from experiments.harness import Row, Study, commits, run_study

CODECS = ("fp32", "bf16", "8bit")
WEIGHTS = {"fp32": torch.float32, "bf16": torch.bfloat16}

RATE = 2e-3  # AdamW's best in all four settings (experiments/offload_codec).
SEEDS = (0, 1, 2, 3, 4)
LONG, LONG_MODEL = 1000, "quickstart"  # Steps.
BOUND = 0.003  # In nats.


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean loss, computed in f32 from weights of any type."""
    wide = {name: p.float() for name, p in model.named_parameters()}
    return functional_call(model, wide, kwargs={**batch.inputs, "use_cache": False}).loss


def measured(job: Job) -> Row:
    """Fine-tune and return the row; the method names the weights' dtype and the codec."""
    torch.manual_seed(job.seed)
    weights, codec = job.method.split("+")
    text, model = load_text(job.shift), load_model(job.model).to(WEIGHTS[weights])
    before = {"final": mean_loss(model, text.final, loss_of)}
    trained = [p for p in model.parameters() if p.requires_grad]
    batches, began = Batches(text.train, MICRO_BATCH, job.seed), time.process_time()
    with OffloadAdamW(model, weight_decay=WEIGHT_DECAY, gradients="bf16", accumulate=1,
                      state_codec=codec, seed=job.seed) as optimizer:  # fmt: skip
        for step in range(job.steps):
            for group in optimizer.param_groups:
                group["lr"] = job.lr * rate_factor(step, job.steps)
            loss_of(model, batches[step]).backward()
            torch.nn.utils.clip_grad_norm_(trained, MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        after = {"final": mean_loss(model, text.final, loss_of)}
    seconds = time.process_time() - began
    return {**asdict(job), "before": before, "after": after, "cpu_seconds": seconds}


def job_of(model: str, shift: str, weights: str, codec: str, seed: int, steps: int = 200) -> Job:
    """Return one fine-tune."""
    return Job(model, shift, f"{weights}+{codec}", 1.0, RATE, seed, steps)


def short(model: str, _: Results) -> list[Job]:
    """Jobs of every text, weight, codec and seed with one model."""
    return [job_of(model, shift, weights, codec, seed)
            for seed in SEEDS for weights in reversed(WEIGHTS) for shift in SHIFTS
            for codec in CODECS]  # fmt: skip


def long(_: Results) -> list[Job]:
    """Jobs of 1,000 steps, in one setting with one seed."""
    return [job_of(LONG_MODEL, SHIFTS[0], weights, codec, 0, LONG)
            for weights in reversed(WEIGHTS) for codec in CODECS]  # fmt: skip


def difference(results: Results, codec: str, jobs: list[Job]) -> list[float]:
    """Losses of the codec less those of fp32 states, in nats, for the jobs that have both."""
    found = []
    for job in jobs:
        other = job_of(job.model, job.shift, job.method.split("+")[0], codec, job.seed, job.steps)
        if results.has(job) and results.has(other):
            found.append(results.loss(other) - results.loss(job))
    return found


def rows_of(results: Results, steps: int, settings: list[tuple[str, str]]) -> list[list[str]]:
    """Return the lines of a table: each weight, setting and codec."""
    lines = []
    for weights in WEIGHTS:
        for codec in CODECS[1:]:
            everything: list[float] = []
            for model, shift in settings:
                jobs = [job_of(model, shift, weights, "fp32", seed, steps) for seed in SEEDS]
                found = difference(results, codec, jobs)
                everything += found
                if not found:
                    continue
                gains = [results.of(job)["before"]["final"] - results.loss(job)
                         for job in jobs if results.has(job)]  # fmt: skip
                lines.append([weights, codec, f"{model}, {shift}", *summary(found),
                              number(statistics.mean(gains), ".3f")])  # fmt: skip
            if len(settings) > 1 and everything:
                lines.append([weights, codec, "all", *summary(everything), ""])
    return lines


def summary(found: list[float]) -> list[str]:
    """Return count, mean, standard error, and whether the bound holds; thousandths of a nat."""
    mean = statistics.mean(found)
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    holds = mean <= max(BOUND, 2 * error)
    shown = number(1e3 * error, ".1f") if error else "-"
    return [str(len(found)), number(1e3 * mean, "+.1f"), shown, "yes" if holds else "no"]


def document(results: Results) -> str:
    """Return the page of results."""
    columns = ("weights", "states", "setting", "pairs", "loss - fp32's, 1e-3 nat",
               "standard error", "within the bound", "gain of fp32 states, nats")  # fmt: skip
    settings = [(model, shift) for model in MODELS for shift in SHIFTS]
    return "\n\n".join([
        "# States of fewer bytes: held-out loss beside fp32 states",
        "Written by `python -m experiments.state_codec.run --table`; commits "
        f"{commits(results.rows())}. Paired by seed. The bound is 3 thousandths of a nat, or two "
        "standard errors.",
        "## 200 steps", table(columns, rows_of(results, 200, settings)),
        "## 1,000 steps", table(columns, rows_of(results, LONG, [(LONG_MODEL, SHIFTS[0])])),
    ]) + "\n"  # fmt: skip


STAGES = {**{model: partial(short, model) for model in reversed(MODELS)}, "long": long}
STUDY = Study(
    Path(__file__).with_name("results.jsonl"), Results, STAGES, measured, document, "RESULTS.md"
)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
