"""One fine-tune: what is asked for in, what it came to out."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass

import torch
from methods import trainee
from sluiceway.data import Batches, Sequences, in_order
from tasks import first_sequences, load_model, load_text

MICRO_BATCH = 4
WARMUP = 10
MAX_NORM = 1.0
LOOKS = 5  # Evaluations on the way, for curves over time.


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


@torch.no_grad()
def mean_loss(model: torch.nn.Module, sequences: Sequences) -> float:
    """Nats a byte."""
    model.eval()
    total, count = 0.0, 0
    for batch in in_order(sequences, 16):
        total += model(**batch.inputs, use_cache=False).loss.item() * batch.learned
        count += batch.learned
    model.train()
    return total / count


def run(job: Job) -> dict:
    """Fine-tune, evaluate on both held-out parts."""
    torch.manual_seed(job.seed)
    text, model = load_text(job.shift), load_model(job.model)
    glance = first_sequences(text.pick, 32)
    before = {"pick": mean_loss(model, text.pick), "final": mean_loss(model, text.final)}
    batches = Batches(text.train, MICRO_BATCH, job.seed)
    seconds, curve = 0.0, []
    refresh = refresh_arguments(job.refresh)
    with trainee(model, job.method, job.ratio, job.lr, job.seed, refresh) as t:
        model.train()
        for step in range(job.steps):
            began = time.perf_counter()
            for group in t.optimizer.param_groups:
                group["lr"] = job.lr * rate_factor(step, job.steps)
            loss = t.model(**batches[step].inputs, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(t.trained, MAX_NORM)
            t.optimizer.step()
            t.optimizer.zero_grad()
            seconds += time.perf_counter() - began
            if (step + 1) % (job.steps // LOOKS) == 0:
                curve.append([step + 1, seconds, mean_loss(t.model, glance)])
        after = {"pick": mean_loss(t.model, text.pick), "final": mean_loss(t.model, text.final)}
        cost = {"device_state_bytes": t.state_bytes, "link_bytes": t.link_bytes}
    return {**asdict(job), "before": before, "after": after, "seconds": seconds, "curve": curve,
            **cost}  # fmt: skip
