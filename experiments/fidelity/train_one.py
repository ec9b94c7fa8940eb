"""One fine-tune: what is asked for in, what it came to out."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import torch
from methods import Trainee, trainee
from sluiceway.text.batches import Batch, Batches, Sequences, in_order
from tasks import first_sequences, load_model, load_text

MICRO_BATCH = 4
WARMUP = 10
MAX_NORM = 1.0
LOOKS = 5  # Evaluations on the way, for curves over time.
Prepare = Callable[..., AbstractContextManager[Trainee]]  # With the arguments of trainee().


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
    refresh: str = "never"  # never, or the steps between two, or "bias".

    @property
    def key(self) -> str:
        """A file name."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{self.model}_{self.shift}_{self.method}_{digest}"


def refresh_arguments(refresh: str) -> dict | None:
    """As of sluiceway.Refresh; "bias" is the paper's trigger, measured every 20 steps."""
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
def mean_loss(model: torch.nn.Module, sequences: Sequences) -> float:
    """Nats a byte."""
    model.eval()
    total, count = 0.0, 0
    for batch in in_order(sequences, 16):
        total += loss_of(model, batch).item() * batch.learned
        count += batch.learned
    model.train()
    return total / count


@functools.cache
def losses_before(name: str, shift: str) -> dict[str, float]:
    """Of the base model."""
    text, model = load_text(shift), load_model(name)
    return {"pick": mean_loss(model, text.pick), "final": mean_loss(model, text.final)}


def run(job: Job, prepare: Prepare = trainee) -> dict:
    """Fine-tune, evaluate on both held-out parts; `prepare` makes a model ready for its method.

    `cpu_seconds` counts every thread of the process, links and host lanes too, and not the time
    that other programs held the cores; a link that is not throttled costs its copies alone.
    """
    torch.manual_seed(job.seed)
    text, model = load_text(job.shift), load_model(job.model)
    glance = first_sequences(text.pick, 32)
    batches = Batches(text.train, MICRO_BATCH, job.seed)
    seconds, cpu_seconds, curve = 0.0, 0.0, []
    refresh = refresh_arguments(job.refresh)
    with prepare(model, job.method, job.ratio, job.lr, job.seed, refresh) as t:
        model.train()
        for step in range(job.steps):
            began, cpu_began = time.perf_counter(), time.process_time()
            for group in t.optimizer.param_groups:
                group["lr"] = job.lr * rate_factor(step, job.steps)
            loss_of(t.model, batches[step]).backward()
            torch.nn.utils.clip_grad_norm_(t.trained, MAX_NORM)
            t.optimizer.step()
            t.optimizer.zero_grad()
            seconds += time.perf_counter() - began
            cpu_seconds += time.process_time() - cpu_began
            if (step + 1) % (job.steps // LOOKS) == 0:
                curve.append([step + 1, seconds, cpu_seconds, mean_loss(t.model, glance)])
        after = {"pick": mean_loss(t.model, text.pick), "final": mean_loss(t.model, text.final)}
        cost = {"device_state_bytes": t.state_bytes, "link_bytes": t.link_bytes}
    before = losses_before(job.model, job.shift)
    return {**asdict(job), "before": before, "after": after, "seconds": seconds,
            "cpu_seconds": cpu_seconds, "curve": curve, **cost}  # fmt: skip
