"""The engine that trains with AdamW on compressed gradients, with its state on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sluiceway import _core
from sluiceway.config.engines.subspace import SubspaceOptions, SubspaceSection
from sluiceway.engines.gradient import GradientEngine
from sluiceway.engines.subspace_plan import SubspacePlan
from sluiceway.model.uncompressed import group_lines
from sluiceway.optim.subspace.arguments import (
    resolve_codec,
    resolve_ratio,
    resolve_weight_rates,
)
from sluiceway.optim.subspace.choices import (
    choice_lines,
    clip_lines,
    codec_choices,
    coreless_lines,
    rate_lines,
)
from sluiceway.optim.subspace.fused.fusing import fused_lines, fused_summary
from sluiceway.optim.subspace.optimizer import SubspaceAdamW


class Subspace(GradientEngine):
    """The engine of `kind: subspace`."""

    section = SubspaceSection

    def plan(self, model: torch.nn.Module) -> SubspacePlan:
        """Predict memory, traffic and time of a run."""
        return SubspacePlan(self.config, model)

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> SubspaceAdamW:
        """Make the optimizer, with lanes as the placement says."""
        engine = self.config.engine
        arguments: dict[str, Any] = {
            **self.lane_arguments(trace),
            **{name: getattr(engine, name) for name in SubspaceOptions.model_fields},
            "tokens_per_step": self.config.tokens_per_step,
            "total_steps": self.config.train.steps,
        }
        if engine.is_settled("codec"):
            arguments["_why"] = "as it was in the save"
        return SubspaceAdamW(model, **arguments)

    def settled(self) -> dict[str, Any]:
        """Return the values chosen for "auto" by this run's tokens, steps and budgets."""
        options = self.optimizer.options
        codec = resolve_codec(options)
        return {
            "codec": self.optimizer.engine.automatic.name if codec == "auto" else codec,
            "ratio": resolve_ratio(options.codec, options.ratio),
            "weight_rates": resolve_weight_rates(options, options.weight_rates),
        }

    def watch_calibration(self, watch: Callable[[int, int], None]) -> None:
        """Pass `watch` on to the optimizer."""
        self.optimizer.watch_calibration(watch)

    def description(self) -> list[str]:
        """List frozen weights, compressed ones with codec and cost, and uncompressed ones."""
        choices = choice_lines(codec_choices(self.optimizer))
        return [
            *super().description(),
            *choices,
            *rate_lines(self.optimizer.rate_factors),
            *clip_lines(self.optimizer, self.config.train.max_norm),
            *coreless_lines(self.optimizer),
            *fused_lines(fused_summary(self.optimizer)),
            *group_lines(self.optimizer.uncompressed),
        ]

    def summary(self) -> dict[str, Any]:
        """Return the description as plain values, and titles of metrics for a report."""
        titles = {"subspace.bias_mean": "Estimation bias, mean over weights"}
        fused = fused_summary(self.optimizer)
        bias = fused and self.optimizer.fused_linears.bias.summary()
        return {
            "codecs": codec_choices(self.optimizer),
            "rate_factors": self.optimizer.rate_factors,
            **({"fused": fused, "bias": bias} if fused else {}),
            "metrics": titles,
            "parameters": {"uncompressed": self.optimizer.uncompressed},
        }

    def trace(self) -> _core.Trace:
        """Return the trace of the compiled engine; its lanes are rows."""
        return self.optimizer.engine.trace
