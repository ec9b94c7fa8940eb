"""The base class of engines that run a backward, with micro-batches and the loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sluiceway.engines.engine import Ranges, Update
from sluiceway.engines.plan import DevicePlan, EnginePlan, trained_elements
from sluiceway.engines.resident import ResidentEngine
from sluiceway.machine.device_ops import ops_on
from sluiceway.machine.placement import Placement
from sluiceway.model.chunked_loss.of_model import ChunkedLoss
from sluiceway.model.loss import inputs_on
from sluiceway.text.batches import Batch, joined


class GradientEngine(ResidentEngine):
    """An engine whose step consists of forward, backward, and a step of its optimizer."""

    @property
    def _checkpoints(self) -> bool:
        away = getattr(self.config.engine, "activations", "device") != "device"
        return super()._checkpoints or away

    def lane_arguments(self, trace: Path | None) -> dict[str, Any]:
        """Arguments that every optimizer with lanes gets, from the config and the placement."""
        config, train, placement = self.config, self.config.train, self.placement
        arguments: dict[str, Any] = {
            "lr": train.lr,
            "betas": train.betas,
            "eps": train.eps,
            "weight_decay": train.weight_decay,
            "max_norm": train.max_norm,
            "schedule": config.schedule.order,
            "norm_mode": config.schedule.norm,
            "device": placement.name,
            "link": config.device.link,
            "lane_threads": config.device.lane_threads,
            "budget": config.budget,
            "accumulate": self.config.backwards,
            "seed": train.seed,
            "trace": str(trace) if trace else None,
        }
        if placement.device_cpu is not None:
            arguments["_pin"] = (placement.device_cpu, placement.lane_cpu)
        return arguments

    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Open like every engine."""
        super().open(folder, placement, trace)
        self._loss_of = self.loss_on(self.model, placement)

    def loss_on(
        self, model: torch.nn.Module, placement: Placement
    ) -> Callable[[Batch], torch.Tensor]:
        """Return the model's own loss, or the same in slices."""
        if self.config.train.loss == "whole":
            return super().loss_on(model, placement)
        sliced = ChunkedLoss(model, graph=True)

        def loss_of(batch: Batch) -> torch.Tensor:
            with placement.cast():
                return sliced(**inputs_on(placement, batch), use_cache=False)

        return loss_of

    def plan(self, model: torch.nn.Module) -> EnginePlan:
        """Predict a run that keeps two moments of every trained parameter, like plain AdamW."""
        return DevicePlan(self.config, trained_elements(model))

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Run forward and backward of every micro-batch, or of all at once, and the step.

        A loss that is not finite ends the step before its backward, and the weights stay as they
        are. On a device that computes asynchronously, the loss is read after the step; then a loss
        that is not finite makes its gradients NaN, so that the optimizer skips the step.
        """
        device = ops_on(self.placement.device)
        if self.config.backwards == 1:
            batches = [joined(batches)]  # The optimizer divides them for each block.
        learned = sum(batch.learned for batch in batches)
        losses: list[tuple[Callable[[], torch.Tensor], float]] = []
        for batch in batches:
            share = batch.learned / learned
            with ranges.range("forward"):
                loss = self._loss_of(batch)
                losses.append((device.fetch(loss.detach()), share))
            if not device.asynchronous and not math.isfinite(_mean(losses)):
                self.optimizer.zero_grad()
                return Update(_mean(losses), skipped=True)
            with ranges.range("backward"):
                seed = _finite_or_nan(loss.detach()) if device.asynchronous else None
                self.scaler.scale(loss * share).backward(seed)
        with ranges.range("optimizer step"):
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = bool(self.optimizer.overflowed) or self.scaler.get_scale() < scale
            self.optimizer.zero_grad()
        return Update(_mean(losses), skipped)


def _mean(losses: Sequence[tuple[Callable[[], torch.Tensor], float]]) -> float:
    """Weighted mean of the micro-batches' losses; waits for losses that are still being copied."""
    total = 0.0
    for read, share in losses:
        total += read().item() * share
    return total


def _finite_or_nan(loss: torch.Tensor) -> torch.Tensor:
    """Gradient with which a backward of `loss` starts: 1, or NaN to make every gradient NaN."""
    return torch.where(loss.isfinite(), 1.0, math.nan).to(loss.dtype)
