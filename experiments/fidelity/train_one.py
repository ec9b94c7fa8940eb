"""Run one fine-tune: take a job and return its results."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from sluiceway.text.batches import Batch, Batches, Sequences, in_order

from experiments.fidelity.methods import Trainee, trainee
from experiments.fidelity.tasks import Text, first_sequences, load_model, load_text

MICRO_BATCH = 4
WARMUP = 10
MAX_NORM = 1.0
LOOKS = 5  # Evaluations during training, for curves over time.
Prepare = Callable[..., AbstractContextManager[Trainee]]  # Called with the arguments of trainee().


def digest_of(asked: Any) -> str:
    """Ten hex digits that identify a frozen dataclass; equal ones have equal digits."""
    text = json.dumps(asdict(asked), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Job:
    """A fine-tune; equal jobs have equal keys."""

    model: str
    shift: str
    method: str
    ratio: float
    lr: float
    seed: int
    steps: int = 200
    refresh: str = "never"  # never, the steps between two refreshes, or "bias".

    @property
    def key(self) -> str:
        """Return the name that logs print, different for different jobs."""
        return f"{self.model}_{self.shift}_{self.method}_{digest_of(self)}"


def asked_for(row: dict[str, Any]) -> Job:
    """Return the job that produced a row."""
    return Job(**{f.name: row[f.name] for f in fields(Job)})


@dataclass(frozen=True)
class Pace:
    """Length, learning rate and step size of a fine-tune."""

    lr: float
    steps: int
    seed: int  # Orders the sequences.
    micro_batch: int = MICRO_BATCH
    accumulate: int = 1  # Micro-batches a step.
    looks: int = LOOKS  # Evaluations during training.
    max_norm: float | None = MAX_NORM  # Clips the gradients that the method forms; None: no clip.


def refresh_arguments(refresh: str) -> dict | None:
    """Arguments of sluiceway.Refresh; "bias" is the paper's trigger, measured every 20 steps."""
    if refresh == "never":
        return None
    if refresh == "bias":
        return {"every": 20, "threshold": 0.9}
    return {"every": int(refresh)}


def rate_factor(step: int, steps: int) -> float:
    """Linear warmup, then a cosine to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def loss_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Mean loss, computed in bf16 with fp32 weights."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(**batch.inputs, use_cache=False).loss


@torch.no_grad()
def mean_loss(
    model: torch.nn.Module,
    sequences: Sequences,
    loss_of: Callable[[torch.nn.Module, Batch], torch.Tensor] = loss_of,
) -> float:
    """Mean loss in nats a byte; `loss_of` computes that of a batch."""
    model.eval()
    total, count = 0.0, 0
    for batch in in_order(sequences, 16):
        total += loss_of(model, batch).item() * batch.learned
        count += batch.learned
    model.train()
    return total / count


@functools.cache
def losses_before(name: str, shift: str) -> dict[str, float]:
    """Losses of the base model."""
    text, model = load_text(shift), load_model(name)
    return {"pick": mean_loss(model, text.pick), "final": mean_loss(model, text.final)}


def fine_tune(t: Trainee, text: Text, pace: Pace) -> dict[str, Any]:
    """Train; return the seconds of all steps and the losses along the way.

    A group of the optimizer may have an `lr_factor`, which multiplies its learning rate.
    `cpu_seconds` counts every thread of the process, link and host lanes included, but no time
    during which other programs held the cores. A link that is not throttled costs only its copies.
    """
    glance = first_sequences(text.pick, 32)
    batches = Batches(text.train, pace.micro_batch, pace.seed)
    due = {round(pace.steps * (k + 1) / pace.looks) for k in range(pace.looks)}
    seconds, cpu_seconds, curve = 0.0, 0.0, []
    t.model.train()
    for step in range(pace.steps):
        began, cpu_began = time.perf_counter(), time.process_time()
        factor = rate_factor(step, pace.steps)
        for group in t.optimizer.param_groups:
            group["lr"] = pace.lr * group.get("lr_factor", 1.0) * factor
        for part in range(pace.accumulate):
            batch = batches[step * pace.accumulate + part]
            (loss_of(t.model, batch) / pace.accumulate).backward()
        if pace.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(t.trained, pace.max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()
        seconds += time.perf_counter() - began
        cpu_seconds += time.process_time() - cpu_began
        if step + 1 in due:
            curve.append([step + 1, seconds, cpu_seconds, mean_loss(t.model, glance)])
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "curve": curve}


def run(job: Job, prepare: Prepare = trainee) -> dict:
    """Fine-tune and evaluate on both held-out parts; `prepare` sets a model up for its method."""
    torch.manual_seed(job.seed)
    text, model = load_text(job.shift), load_model(job.model)
    refresh = refresh_arguments(job.refresh)
    with prepare(model, job.method, job.ratio, job.lr, job.seed, refresh) as t:
        done = fine_tune(t, text, Pace(job.lr, job.steps, job.seed))
        after = {"pick": mean_loss(t.model, text.pick), "final": mean_loss(t.model, text.final)}
        cost = {"device_state_bytes": t.state_bytes, "link_bytes": t.link_bytes}
    before = losses_before(job.model, job.shift)
    return {**asdict(job), "before": before, "after": after, **done, **cost}
