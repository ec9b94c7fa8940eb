"""Train a row of the simulation with the real engine: OffloadAdamW, states in host memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sluiceway import OffloadAdamW
from torch import nn

from experiments.fidelity.methods import WEIGHT_DECAY, Trainee, block_weights

PREFIX = "engine_"  # Stands before the codec in the name of a method.
_CHUNK = 32 << 10  # Bytes of masters; so small that every matrix has its own chunks.


@contextlib.contextmanager
def trainee(model: nn.Module, method: str, ratio: float, lr: float, seed: int,
            refresh: dict[str, Any] | None = None) -> Iterator[Trainee]:  # fmt: skip
    """Do what methods.trainee() does, for PREFIX and a codec."""
    names = [name for name, _ in block_weights(model)]
    trained = [p for p in model.parameters() if p.requires_grad]
    with OffloadAdamW(
        model,
        lr=lr,
        weight_decay=WEIGHT_DECAY,
        tier="host",
        gradients="bf16",
        codec=method.removeprefix(PREFIX),
        ratio=ratio,
        redraw=refresh["every"] if refresh else 0,
        target=names,
        chunk=_CHUNK,
        accumulate=1,
        seed=seed,
    ) as optimizer:
        cores = {one["name"]: one["core_rows"] for one in optimizer.describe()}
        if whole := [name for name in names if not cores[name]]:
            raise AssertionError(f"{whole} cross the link whole instead of as cores")
        yield Trainee(model, optimizer, trained)
