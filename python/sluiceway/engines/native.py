"""Plain AdamW on the device, the baseline of every other engine."""

from __future__ import annotations

from pathlib import Path

import torch

from sluiceway.config.engines.native import NativeSection
from sluiceway.engines.gradient import GradientEngine
from sluiceway.optim.native import NativeAdamW


class Native(GradientEngine):
    """The engine of `kind: native`."""

    section = NativeSection

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> NativeAdamW:
        """Make AdamW over every parameter that is not frozen."""
        train = self.config.train
        return NativeAdamW(
            [p for p in model.parameters() if p.requires_grad],
            train.max_norm,
            self.config.engine.fused,
            lr=train.lr,
            betas=train.betas,
            eps=train.eps,
            weight_decay=train.weight_decay,
        )

    def description(self) -> list[str]:
        """Extend the lines by what 16-bit weights lose."""
        dtype, lines = self.config.model.dtype, super().description()
        if dtype != "fp32":
            lines.append(
                f"weights and moments are {dtype}, which rounds small updates away; "
                "model.dtype: fp32 keeps them"
            )
        return lines
