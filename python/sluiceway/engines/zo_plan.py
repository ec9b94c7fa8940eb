"""What descent from losses alone takes: two forwards a direction, on perturbed copies of blocks."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, micro_batch_seconds, trained_elements
from sluiceway.model.blocks import find_blocks
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.optim.zo.rehearsed import PerturbedCopies
from sluiceway.optim.zo.weights import needs_master

_MASTER_BYTES = 4
_UPDATE_BYTES = 2 * _MASTER_BYTES  # A is read and written, once for all directions.


class ZoPlan(DevicePlan):
    """Predicted for weights that lie on the device, from a forward that holds their copies."""

    backward = False

    def __init__(self, config: Config, model: nn.Module) -> None:
        super().__init__(config, trained_elements(model), moments=0)
        find_blocks("zo", model)  # Refuses a model that has none.
        engine, gamma = config.engine, 1.0 - config.train.weight_decay
        trained = [p for p in model.parameters() if p.requires_grad]
        factored = [p for p in trained if p.dim() >= 2 and engine.noise == "lowrank"]
        of_factors = {id(p) for p in factored}
        images = [
            p
            for p in trained
            if id(p) in of_factors or needs_master(p, gamma if p.dim() >= 2 else 1.0)
        ]
        self._weight_bytes = sum(p.nbytes for p in trained)
        self._image_bytes = sum(p.nbytes for p in images)
        factors = engine.rank * sum(len(p) + p[0].numel() for p in factored)  # M and V.
        self._state_bytes = _MASTER_BYTES * (factors + sum(p.numel() for p in images))
        self.figures["why"] = (
            f"{2 * engine.directions} forwards a step, {engine.drawn} noise, weights on the device"
        )

    def as_trained(self, model: nn.Module) -> nn.Module:
        """With copies of a block while it runs, as both halves of a measurement hold them."""
        PerturbedCopies(model)
        return model

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Masters and factors beside the most that a forward holds, copies included."""
        return {"device": rehearsal.peak_bytes + self._state_bytes, "host": 0, "pinned": 0}

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Two forwards of every direction and micro-batch, their perturbed copies, the update."""
        forward, _ = micro_batch_seconds(rehearsal, speeds)
        passes = self._config.engine.directions * self._config.train.accumulate
        each = _MASTER_BYTES * self._elements + 2 * self._weight_bytes
        moved = passes * each + _UPDATE_BYTES * self._elements + self._image_bytes
        return passes * 2 * forward + moved / (1e9 * speeds["memory_gbps"])
