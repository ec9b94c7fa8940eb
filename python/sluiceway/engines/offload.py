"""Full AdamW, its states in host memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sluiceway.config.engines.offload import OffloadOptions, OffloadSection
from sluiceway.config.values import StoreOptions
from sluiceway.engines.gradient import OPTIMIZER_FILE, GradientEngine
from sluiceway.engines.offload_plan import OffloadPlan
from sluiceway.engines.protocol import Ranges, Recorder, Update
from sluiceway.engines.state_file import write_state
from sluiceway.optim.offload.arguments import resolve_gradients
from sluiceway.optim.offload.optimizer import OffloadAdamW
from sluiceway.text.batches import Batch


class Offload(GradientEngine):
    """The engine of `kind: offload`."""

    section = OffloadSection
    _pins = False  # A save is in its place, or will be before the next step.

    def plan(self, model: torch.nn.Module) -> OffloadPlan:
        """What states, gradients and the ring take."""
        return OffloadPlan(self.config, model)

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> OffloadAdamW:
        """With lanes of its own, which follow the placement."""
        config, engine, placement = self.config, self.config.engine, self.placement
        train, schedule, store = config.train, config.schedule, config.store
        autocast = placement.autocast_dtype
        arguments: dict[str, Any] = {
            "lr": train.lr,
            "betas": train.betas,
            "eps": train.eps,
            "weight_decay": train.weight_decay,
            "max_norm": train.max_norm,
            **{name: getattr(engine, name) for name in OffloadOptions.model_fields},
            **{name: getattr(store, name) for name in StoreOptions.model_fields},
            "gradients": resolve_gradients(engine.gradients, model, autocast),
            "schedule": schedule.order,
            "norm_mode": schedule.norm,
            "device": placement.name,
            "link": config.device.link,
            "budget": config.budget,
            "accumulate": train.accumulate,
            "seed": train.seed,
            "trace": str(trace) if trace else None,
            "_exact_norm": False,
        }
        if placement.device_cpu is not None:
            arguments["_pin"] = (placement.device_cpu, placement.lane_cpu)
        return OffloadAdamW(model, **arguments)

    def save(self, folder: Path) -> None:
        """As every engine; on disk the step that it names is kept when the save is in its place.

        Until then the step of the save before it is kept: a kill leaves one whole save or the
        other.
        """
        self.model.save_pretrained(folder)
        write_state(self.optimizer.unpinned_state(), folder / OPTIMIZER_FILE)
        self._pins = self.config.engine.tier == "disk"

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """As every engine that runs a backward."""
        if self._pins:
            self.optimizer.pin()
            self._pins = False
        return super().update(batches, ranges)

    def recorder(self) -> Recorder:
        """The compiled engine, whose lanes are rows of the trace."""
        return self.optimizer.engine
