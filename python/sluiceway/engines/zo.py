"""Descent from losses alone: no backward, no gradient, nothing that is written back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sluiceway.config.engines.zo import ZoOptions, ZoSection
from sluiceway.engines.plan import trained_elements
from sluiceway.engines.protocol import Ranges, Update
from sluiceway.engines.resident import ResidentEngine
from sluiceway.engines.zo_plan import ZoPlan
from sluiceway.model.loss import loss_of
from sluiceway.optim.zo.optimizer import ZoSgd
from sluiceway.text.batches import Batch


class Zo(ResidentEngine):
    """The engine of `kind: zo`."""

    section = ZoSection

    def plan(self, model: torch.nn.Module) -> ZoPlan:
        """What copies of perturbed weights and two forwards take."""
        return ZoPlan(self.config, model)

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> ZoSgd:
        """Over every parameter, of the tier that the config says."""
        config = self.config
        return ZoSgd(
            model,
            lr=config.train.lr,
            weight_decay=config.train.weight_decay,
            device=self.placement.name,
            seed=config.train.seed,
            **{name: getattr(config.engine, name) for name in ZoOptions.model_fields},
        )

    def load(self, folder: Path) -> None:
        """As every engine; the decay is the config's, which a resume may change."""
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        super().load(folder)
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Both losses of every direction, and the step along it; dropout is off.

        A loss that is not finite leaves its direction out, and with it the step counts as skipped.
        """
        self.model.eval()
        with ranges.range("forwards and update"):
            loss = self.optimizer.step(self._loss_of(batches))
        return Update(loss.item(), skipped=self.optimizer.overflowed)

    def _loss_of(self, batches: Sequence[Batch]) -> Callable[[], torch.Tensor]:
        """A closure over a step's micro-batches; they weigh as many tokens as they learn."""
        learned = sum(batch.learned for batch in batches)

        def closure() -> torch.Tensor:
            losses = [
                loss_of(self.model, self.placement, batch).float() * (batch.learned / learned)
                for batch in batches
            ]
            return torch.stack(losses).sum()

        return closure

    def description(self) -> list[str]:
        """What is trained, how it is measured, and what that leaves on the device."""
        engine, optimizer = self.config.engine, self.optimizer
        trained = trained_elements(self.model)
        everything = sum(p.numel() for p in self.model.parameters())
        directions = f"{engine.directions} direction{'s' * (engine.directions > 1)}"
        return [
            f"trains {trained:,} of {everything:,} parameters from losses alone, "
            f"{2 * engine.directions} forwards a step: no backward, no gradient, no dropout",
            f"{directions} a step of {engine.drawn} noise, eps {engine.eps:g}, in "
            f"{len(optimizer.blocks.blocks)} blocks of {optimizer.blocks.name or 'the model'}",
            "weights stay on the device: nothing crosses a link, nothing is written back",
        ]

    def summary(self) -> dict[str, Any]:
        """The same, as plain values."""
        engine, blocks = self.config.engine, self.optimizer.blocks
        return {
            "zo": {
                "tier": engine.tier,
                "noise": engine.drawn,
                "eps": engine.eps,
                "directions": engine.directions,
                "blocks": blocks.name,
                "block_count": len(blocks.blocks),
            }
        }
