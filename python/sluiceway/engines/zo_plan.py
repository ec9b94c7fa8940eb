"""What descent from losses alone takes: two forwards a direction, on perturbed copies of blocks."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, micro_batch_seconds, trained_elements
from sluiceway.machine.placement import DTYPES, choose_placement
from sluiceway.model.blocks import find_blocks
from sluiceway.model.chunked_loss.rehearsed import rehearse_chunked_loss
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.speeds import link_of
from sluiceway.optim.zo.consolidation import ConsolidationCosts
from sluiceway.optim.zo.rehearsed import PerturbedCopies, StreamedUses
from sluiceway.optim.zo.weights import needs_master

_MASTER_BYTES = 4
_UPDATE_BYTES = 2 * _MASTER_BYTES  # A is read and written, once for all directions.
_COPIES_MOVED = 3  # Bytes a byte of a weight: read once, two neighbours written.
_WHERE = {"device": "on the device", "host": "in host memory", "disk": "on disk"}
# Of one pending update and element, whose noise is drawn again.
_REPLAY_SECONDS = 0.16e-9  # On one core.
# On a card in operations of a product that take as long. Assumed, for some five instructions: these
# are 10 operations on a GeForce card, 80 on an A100.
_REPLAY_FLOP = 32


class ZoPlan(DevicePlan):
    """Predicted from a forward: of one that holds copies of its blocks, or of one that streams."""

    backward = False
    on_device = "try a smaller train.micro_batch or engine.depth"

    def __init__(self, config: Config, model: nn.Module) -> None:
        super().__init__(config, trained_elements(model), moments=0)
        engine, gamma = config.engine, 1.0 - config.train.weight_decay
        self._streams, self._on_disk = engine.tier != "device", engine.tier == "disk"
        self._on_card = choose_placement(config, of_plan=True).device.type == "cuda"
        self.token_flop = 4 * engine.directions
        if not self._streams:
            find_blocks("zo", model)  # Refuses a model that has none.
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        factored = [p for _, p in trained if p.dim() >= 2 and engine.noise == "lowrank"]
        of_factors = {id(p) for p in factored}
        images = [
            p
            for _, p in trained
            if id(p) in of_factors or needs_master(p, gamma if p.dim() >= 2 else 1.0)
        ]
        self._weight_bytes = sum(p.nbytes for _, p in trained)
        self._image_bytes = sum(p.nbytes for p in images)
        self._vectors = sum(p.numel() for _, p in trained if p.dim() < 2)
        self._rows = max((len(p) for p in factored), default=0)
        self._factors = [engine.rank * (len(p) + p[0].numel()) for p in factored]  # M and V.
        kept = sum(self._factors) + sum(p.numel() for p in images)
        self._state_bytes = _MASTER_BYTES * kept
        self.figures["why"] = (
            f"{2 * engine.directions} forwards a step, {engine.drawn} noise, "
            f"weights {_WHERE[engine.tier]}"
        )
        if self._on_disk:
            self.advice = "try a smaller engine.depth or store.chunk"
            weights = [(name, p.numel(), config.model.dtype) for name, p in trained]
            self._arena = _core.zo_arena_plan(weights, config.store.chunk)

    def as_trained(self, model: nn.Module) -> nn.Module:
        """With what both halves of a measurement hold of weights beside a plain forward."""
        config, engine = self._config, self._config.engine
        if DTYPES[config.model.dtype] is not torch.float32:
            rehearse_chunked_loss(model)
        if not self._streams:
            PerturbedCopies(model, engine.directions, config.train.accumulate)
            return model
        evaluated = engine.evaluated_at_once(config) if config.data.eval else 1
        self._uses = StreamedUses(model, max(engine.halves(config), evaluated))
        return model

    @cached_property
    def _ring(self) -> dict[str, int]:
        """Bytes, of what a rehearsal has used."""
        uses, depth = self._uses.slots(), self._config.engine.depth
        sizes, self.figures["ring"] = _core.zo_ring_plan(uses, depth, self._on_disk)
        return sizes

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Masters and factors beside the most that a forward holds, copies included.

        Of weights that are streamed the ring of slots, and what stays, in place of all of them. The
        base is in host memory, page-locked for a GPU, or on disk, twice: it has a slot for the next
        one. What is read of it is page-locked.
        """
        if not self._streams:
            return {"device": rehearsal.peak_bytes + self._state_bytes, "host": 0, "pinned": 0}
        stays = self._uses.resident_bytes + min(
            self._config.engine.resident, self._uses.streamed_bytes
        )
        forwards = self._uses.peak_bytes - self._weight_bytes
        parts = self.figures["device_parts"] = {
            "slots": self._ring["device"],
            "resident": stays,
            "forwards": forwards,
            "factors": self._summed_bytes(),
        }
        device = sum(parts.values())
        if self._on_disk:
            arena = self._arena
            return {
                "device": device,
                "host": arena["tables"] + max(arena["pass"], arena["largest"]),
                "pinned": self._ring["staging"],
                "disk": arena["store"],
            }
        base = self._weight_bytes
        host, pinned = (0, base) if self._on_card else (base, 0)
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
        if not self._streams:
            return {"d2h": 0, "h2d": 0}
        stays = self._config.engine.resident
        links = {"d2h": 0, "h2d": max(0, self._uses.streamed_bytes - stays)}
        if not self._on_disk:
            return links
        return links | {"disk_read": max(0, self._ring["read"] - stays), "disk_written": 0}

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Two forwards of every direction and micro-batch, their perturbed copies, the update.

        Of weights that are streamed beside what brings them; and with what is pending, the mean
        over the steps of the run, or, with a share of a new base, of those between two bases.
        """
        forward, _ = micro_batch_seconds(rehearsal, speeds)
        engine, train = self._config.engine, self._config.train
        halves = 2 * engine.directions * train.accumulate * forward
        if not self._streams:
            each = _MASTER_BYTES * self._elements + 2 * self._weight_bytes
            copies = engine.directions * each
            moved = copies + _UPDATE_BYTES * self._elements + self._image_bytes
            return halves + moved / (1e9 * speeds["memory_gbps"])
        moved = engine.directions * _COPIES_MOVED * self._weight_bytes
        costs = self._costs(halves + moved / (1e9 * speeds["memory_gbps"]), speeds)
        every = engine.base_steps
        if not self._on_disk or train.steps <= every:  # The run ends before its first new base.
            return costs.without_base(train.steps)
        self.figures["consolidation"] = {
            "every": every,
            "cheapest": costs.cheapest(engine.most_steps),
            "seconds": costs.of_base(every),
            "bytes_read": self._arena["base"],
            "bytes_written": self._arena["base"],
            "written_per_step": self._arena["base"] / every,
            "seconds_per_step": costs.of_base(every) / every,
        }
        return costs.means(every)[-1]

    def _costs(self, working: float, speeds: dict[str, Any]) -> ConsolidationCosts:
        engine, links = self._config.engine, self.links()
        bringing = links["h2d"] / (1e9 * link_of(self._config, speeds).h2d_gbps)
        core = _REPLAY_SECONDS * self._elements
        on_device = (
            _REPLAY_FLOP * self._elements / (1e12 * speeds["tflops"])
            if self._on_card
            else core / engine.perturb_lanes
        )
        # Each direction replays those of all; noise of low rank is summed up.
        replaying = 0.0 if self._factors else engine.directions**2 * on_device
        if not self._on_disk:
            return ConsolidationCosts(bringing, working, replaying)
        gbps = speeds["disk_gbps"] or float("inf")
        return ConsolidationCosts(
            bringing=max(bringing, links["disk_read"] / (1e9 * gbps)),
            working=working,
            replaying=replaying,
            rewriting=2 * self._arena["base"] / (1e9 * gbps),
            replaying_base=engine.directions * core / torch.get_num_threads(),
        )
