"""Simulate the disk engine's compressed path in memory: full AdamW that receives P S Q^T.

The gradient of every matrix is replaced as soon as backward has made it: S = P^T G Q, rounded to
bf16 as it crosses the link, then G^ = P S Q^T, rounded to bf16 as it lies on disk. Clipping sees
G^. AdamW's moments are fp32 and of full size. Nothing is divided by f, and the part of a gradient
that P and Q leave out trains nothing. Norms, and every matrix under `identity`, keep their
gradient, rounded to bf16.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from experiments.fidelity.methods import WEIGHT_DECAY, Trainee, block_weights
from experiments.offload_codec.projectors import DRAWS, LEARN_STEPS, Pair, core_shape, generator_of

UNCOMPRESSED = ("adamw", "identity")  # Keeps the gradient as it is; rounds it to bf16.
# Full learning at every step would cost 20 times the training step itself.
LEARN_STEPS_EACH_STEP = 10


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest bf16."""
    return x.bfloat16().to(x.dtype)


def link_bytes(model: nn.Module, method: str, ratio: float) -> int:
    """Bytes of a step: cores or gradients down, weights up, 2 for an element; 4 for adamw."""
    if method == "adamw":
        return sum(8 * p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(4 * p.numel() for p in model.parameters() if p.requires_grad)
    if method == "identity":
        return total
    for _, p in block_weights(model):
        total += 2 * (math.prod(core_shape(method, ratio, *p.shape)) - p.numel())
    return total


class Simulation:
    """Compresses gradients on their way to AdamW, and counts the effect."""

    def __init__(self) -> None:
        self.codec_seconds = 0.0
        self.draws = 0
        self._lost, self._whole, self._biases, self._steps = 0.0, 0.0, 0.0, 0

    def figures(self) -> dict[str, Any]:
        """Return means over weights and steps; the relative bias is that of a step's gradient."""
        bias = self._biases / self._steps if self._steps else 0.0
        return {"relative_bias": bias, "draws": self.draws, "codec_seconds": self.codec_seconds}

    @contextlib.contextmanager
    def trainee(self, model: nn.Module, method: str, ratio: float, lr: float, seed: int,
                refresh: dict[str, Any] | None = None) -> Iterator[Trainee]:  # fmt: skip
        """Do what methods.trainee() does, for UNCOMPRESSED and the codecs of projectors.DRAWS.

        Without `refresh`, projectors are drawn at the first step and stay. With it, they are drawn
        anew every refresh["every"] steps.
        """
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices = dict(block_weights(model))
        every = refresh["every"] if refresh else math.inf
        hooks = []
        if method != "adamw":
            for name, p in model.named_parameters():
                if p.requires_grad:
                    through = method if name in matrices else "identity"
                    codec = _WeightCodec(self, through, ratio, seed, name, every)
                    hooks.append(p.register_post_accumulate_grad_hook(codec))
        optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=WEIGHT_DECAY)
        try:
            yield Trainee(model, optimizer, trained, None, link_bytes(model, method, ratio))
        finally:
            for hook in hooks:
                hook.remove()

    def note(self, g: torch.Tensor, seen: torch.Tensor) -> None:
        """Record a gradient and the version of it that AdamW sees."""
        self._biases += ((seen - g).norm() / g.norm().clamp(min=1e-30)).item()
        self._steps += 1


class _WeightCodec:
    """Path of one weight's gradient."""

    def __init__(self, simulation: Simulation, method: str, ratio: float, seed: int, name: str,
                 every: float) -> None:  # fmt: skip
        self._simulation, self._method, self._ratio = simulation, method, ratio
        self._seed, self._name, self._every = seed, name, every
        self._step = 0
        self._pair: Pair | None = None

    @torch.no_grad()
    def __call__(self, p: torch.Tensor) -> None:
        """Replace the gradient; a post-accumulate hook."""
        if self._method == "identity":
            p.grad = rounded(p.grad)
            return
        began = time.thread_time()
        if self._pair is None or self._step % self._every == 0:
            self._pair = self._drawn(p.grad)
            self._simulation.draws += 1
        self._step += 1
        core = rounded(self._pair.compress(p.grad))
        seen = rounded(self._pair.decompress(core))
        self._simulation.codec_seconds += time.thread_time() - began
        self._simulation.note(p.grad, seen)
        p.grad = seen

    def _drawn(self, g: torch.Tensor) -> Pair:
        steps = LEARN_STEPS_EACH_STEP if self._every == 1 else LEARN_STEPS
        generator = generator_of(self._seed, self._name, self._step)
        return DRAWS[self._method](g, self._ratio, generator, steps)
