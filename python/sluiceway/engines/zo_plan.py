"""What descent from losses alone takes: two forwards a direction, on perturbed copies of blocks."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway import _core
from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, micro_batch_seconds, trained_elements
from sluiceway.model.blocks import find_blocks
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.speeds import link_of
from sluiceway.optim.zo.rehearsed import PerturbedCopies, StreamedUses
from sluiceway.optim.zo.weights import needs_master

_MASTER_BYTES = 4
_UPDATE_BYTES = 2 * _MASTER_BYTES  # A is read and written, once for all directions.


class ZoPlan(DevicePlan):
    """Predicted from a forward: of one that holds copies of its blocks, or of one that streams."""

    backward = False

    def __init__(self, config: Config, model: nn.Module) -> None:
        super().__init__(config, trained_elements(model), moments=0)
        self._streams = config.engine.tier != "device"
        if not self._streams:
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
        self._vectors = sum(p.numel() for p in trained if p.dim() < 2)
        self._rows = max((len(p) for p in factored), default=0)
        self._factors = [engine.rank * (len(p) + p[0].numel()) for p in factored]  # M and V.
        kept = sum(self._factors) + sum(p.numel() for p in images)
        self._state_bytes = _MASTER_BYTES * kept
        where = "in host memory" if self._streams else "on the device"
        self.figures["why"] = (
            f"{2 * engine.directions} forwards a step, {engine.drawn} noise, weights {where}"
        )

    def as_trained(self, model: nn.Module) -> nn.Module:
        """With what both halves of a measurement hold of weights beside a plain forward."""
        halves = self._config.engine.directions, self._config.train.accumulate
        if self._streams:
            self._uses = StreamedUses(model, *halves)
        else:
            PerturbedCopies(model, *halves)
        return model

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Masters and factors beside the most that a forward holds, copies included.

        Of weights that are streamed the ring of slots, and what stays, in place of all of them;
        the base is in host memory, page-locked for a GPU.
        """
        if not self._streams:
            return {"device": rehearsal.peak_bytes + self._state_bytes, "host": 0, "pinned": 0}
        engine = self._config.engine
        ring, self.figures["ring"] = _core.zo_ring_plan(self._uses.slots(), engine.depth)
        stays = self._uses.resident_bytes + min(engine.resident, self._uses.streamed_bytes)
        device = rehearsal.peak_bytes - self._weight_bytes + ring + stays + self._summed_bytes()
        on_card = self._config.device.name.startswith("cuda")
        base = self._weight_bytes
        host, pinned = (0, base) if on_card else (base, 0)
        return {"device": device, "host": host, "pinned": pinned}

    def _summed_bytes(self) -> int:
        """Of low-rank noise that is streamed: factors of every period, and sums of vectors.

        Room for one period more is made in a copy of one matrix's factors after the other.
        """
        engine = self._config.engine
        if not self._factors:
            return 0
        periods = -(-self._config.train.steps // engine.period)
        kept = periods * sum(self._factors) + self._vectors
        copied = (periods - 1) * max(self._factors)
        return _MASTER_BYTES * (kept + copied + engine.perturb_lanes * engine.rank * self._rows)

    def links(self) -> dict[str, int]:
        """Every streamed weight once, whatever the directions and micro-batches."""
        streamed = self._uses.streamed_bytes if self._streams else 0
        return {"d2h": 0, "h2d": max(0, streamed - self._config.engine.resident)}

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Two forwards of every direction and micro-batch, their perturbed copies, the update."""
        forward, _ = micro_batch_seconds(rehearsal, speeds)
        directions, batches = self._config.engine.directions, self._config.train.accumulate
        halves = 2 * directions * batches * forward
        if self._streams:
            moved = directions * 3 * self._weight_bytes  # One read, two copies.
            work = halves + moved / (1e9 * speeds["memory_gbps"])
            link = link_of(self._config, speeds)
            return max(work, self.links()["h2d"] / (1e9 * link.h2d_gbps))
        each = _MASTER_BYTES * self._elements + 2 * self._weight_bytes
        copies = directions * each
        moved = copies + _UPDATE_BYTES * self._elements + self._image_bytes
        return halves + moved / (1e9 * speeds["memory_gbps"])
