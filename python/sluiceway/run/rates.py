"""Learning rates as a function of the step alone: a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from sluiceway.config.schema import TrainSection


def learning_rate(train: TrainSection, step: int) -> float:
    """The rate of step `step`, counted from 0: linear warmup, then the schedule, to zero."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    done = (step - train.warmup_steps) / max(1, train.steps - train.warmup_steps)
    factors = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return train.lr * factors[train.schedule]
