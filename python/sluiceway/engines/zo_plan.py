"""Predicts memory, traffic and seconds of a step of training from losses alone."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.base.sizes import format_bytes
from sluiceway.config.engines.zo import ZoSection
from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, Room, pass_seconds, trained_elements
from sluiceway.engines.zo_choices import (
    TOKEN_FLOP,
    ConsolidationCosts,
    PlannedBases,
    choose_directions,
)
from sluiceway.engines.zo_rehearsal import PerturbedCopies, StreamedUses
from sluiceway.machine.placement import DTYPES, choose_placement
from sluiceway.machine.wear import hiding_tokens
from sluiceway.model.blocks import find_blocks
from sluiceway.model.chunked_loss.rehearsed import rehearse_chunked_loss
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.speeds import link_of
from sluiceway.optim.zo.device_weights import needs_master

_MASTER_BYTES = 4
_UPDATE_BYTES = 2 * _MASTER_BYTES  # A is read and written, once for all directions.
_COPIES_MOVED = 3  # Bytes a byte of a weight: read once, two neighbours written.
_WHERE = {"device": "on the device", "host": "in host memory", "disk": "on disk"}
# Seconds of one core for one element: to draw the noise of one pending update again.
_REPLAY_SECONDS = 0.16e-9
_IMAGE_SECONDS = {"fp8": 0.4e-9, "bf16": 0.2e-9, "fp16": 0.2e-9}  # To make an image.
# The replay on a card, as the number of a product's operations that take as long. Assumed, for some
# five instructions: these are 10 operations on a GeForce card, 80 on an A100.
_REPLAY_FLOP = 32
_DEVICE_PARTS = {
    "slots": "of slots",
    "resident": "of norms, biases and what else stays",
    "forwards": "of what forwards hold",
    "factors": "of factors and sums of updates",
}


class ZoPlan(DevicePlan):
    """The plan of `kind: zo`, from a forward that holds copies of blocks or streams weights."""

    backward = False
    like_native = False
    on_device = "try a smaller train.micro_batch or engine.depth"

    def __init__(self, config: Config, model: nn.Module) -> None:
        super().__init__(config, trained_elements(model), moments=0)
        engine, gamma = config.engine, 1.0 - config.train.weight_decay
        self._streams, self._on_disk = engine.tier != "device", engine.tier == "disk"
        self._is_written = engine.mode == "write_back"
        has_images = self._is_written and engine.master == "fp32"
        width = DTYPES[config.model.dtype].itemsize
        self._widened = _MASTER_BYTES // width if has_images else 1  # Of masters, for each byte.
        self._held = "fp32" if has_images else config.model.dtype
        self._on_card = choose_placement(config, of_plan=True).device.type == "cuda"
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
        if self._on_disk:
            self.advice = "try a smaller engine.depth or store.chunk"
            weights = [(name, p.numel(), config.model.dtype) for name, p in trained]
            self._arena = _core.zo_arena_plan(weights, config.store.chunk)

    def choose(self, rehearsal: Rehearsal, speeds: dict[str, Any], room: Room) -> None:
        """Choose directions, and steps between new bases, if they are auto."""
        config = self._config
        if config.engine.directions == "auto":
            of = config.engine.with_directions
            found = choose_directions(
                self._hiding_tokens(speeds),
                config.tokens_per_step,
                config.engine.most_directions(config),
                lambda count: self._step_seconds(of(count), rehearsal, speeds),
                lambda count: sum(self._device_parts(of(count)).values()),
                room() if self._streams else None,
            )
            self.figures["directions"] = found.figures()
            config = config.model_copy(update={"engine": of(found.chosen)})
        engine = config.engine
        if self._plans_bases(engine, speeds):
            bases = self._planned_bases(engine, self._costs(engine, rehearsal, speeds))
            self.figures["new_bases"] = bases.figures()
            engine = engine.with_base_steps(bases.chosen)
        self._config = config.model_copy(update={"engine": engine})
        self.token_flop = TOKEN_FLOP * engine.directions
        self.figures["why"] = (
            f"{2 * engine.directions} forwards a step, {engine.drawn} noise, "
            f"weights {_WHERE[engine.tier]}"
        )

    def _hiding_tokens(self, speeds: dict[str, Any]) -> float:
        """Tokens per step that hide one direction's traffic over the slower of link and disk."""
        if not self._streams:
            return 0.0
        links = self.links()
        ways = [(links["h2d"], link_of(self._config, speeds).h2d_gbps)]
        if self._on_disk and speeds["disk_gbps"]:
            ways.append((links["disk_read"], speeds["disk_gbps"]))
        return max(
            hiding_tokens(count / self._elements, speeds["tflops"], gbps, TOKEN_FLOP)
            for count, gbps in ways
        )

    def as_trained(self, model: nn.Module) -> nn.Module:
        """Let the model hold the memory that two perturbed forwards need beside a plain one."""
        config, engine = self._config, self._config.engine
        if DTYPES[config.model.dtype] is not torch.float32:
            rehearse_chunked_loss(model)
        if not self._streams:
            PerturbedCopies(model, engine.direction_count, config.train.accumulate)
            return model
        self._uses = StreamedUses(model)
        return model

    @cached_property
    def _ring(self) -> dict[str, int]:
        """Bytes of the ring of slots, from the uses of weights that a rehearsal has seen."""
        config, wire = self._config, self._config.engine.narrow_wire
        reads = self._on_disk or wire is not None
        goes_back = self._is_written and not reads
        sizes, self.figures["ring"] = _core.zo_ring_plan(
            self._uses.slots(), config.engine.depth, reads, config.model.dtype, self._held,
            wire or "", goes_back,
        )  # fmt: skip
        return sizes

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Add masters and factors to the peak of a forward, which includes copies.

        If weights are streamed, count only the ring of slots and the weights that stay on the
        device. The base is in host memory, which is page-locked for a GPU, or on disk, where the
        store also has room for the next base. Staging for reads from disk is page-locked.
        """
        if not self._streams:
            return {"device": rehearsal.peak_bytes + self._state_bytes, "host": 0, "pinned": 0}
        parts = self.figures["device_parts"] = self._device_parts(self._config.engine)
        device = sum(parts.values())
        if self._on_disk:
            arena = self._arena
            return {
                "device": device,
                "host": arena["tables"] + max(arena["pass"], arena["largest"]),
                "pinned": self._ring["staging"],
                "disk": arena["store"],
            }
        base = self._widened * self._weight_bytes
        host, pinned = (0, base) if self._on_card else (base, 0)
        return {"device": device, "host": host, "pinned": pinned + self._ring["staging"]}

    def _device_parts(self, engine: ZoSection) -> dict[str, int]:
        """Bytes on the device by purpose; only those of waiting forwards depend on directions."""
        config, uses = self._config, self._uses
        evaluated = engine.evaluated_at_once(config) if config.data.holds_out else 1
        waiting = max(engine.forwards(config), evaluated)
        return {
            "slots": self._ring["device"],
            "resident": self._widened * uses.resident_bytes
            + min(engine.resident, self._widened * uses.streamed_bytes),
            "forwards": uses.peak_bytes(waiting) - self._weight_bytes,
            "factors": self._summed_bytes(),
        }

    def _summed_bytes(self) -> int:
        """Bytes of streamed low-rank noise: factors of every period, and sums of vectors.

        To make room for one more period, the engine copies the factors matrix by matrix.
        """
        engine = self._config.engine
        if not self._factors:
            return 0
        periods = -(-self._config.train.steps // engine.period)
        kept = periods * sum(self._factors) + self._vectors
        copied = (periods - 1) * max(self._factors)
        return _MASTER_BYTES * (
            kept + copied + (engine.perturb_lanes + 1) * engine.rank * self._rows
        )

    def links(self) -> dict[str, int]:
        """Count every streamed weight once, for any number of directions and micro-batches.

        A master crosses once for each use, and once back if steps are written into it.
        """
        if not self._streams:
            return {"d2h": 0, "h2d": 0}
        stays = self._config.engine.resident
        links = {"d2h": 0, "h2d": max(0, self._ring["arriving"] - stays)}
        if self._is_written and self._config.engine.narrow_wire is None:
            once = self._weight_bytes - self._uses.resident_bytes
            links["d2h"] = max(0, self._widened * once - stays)
        if not self._on_disk:
            return links
        return links | {"disk_read": max(0, self._ring["read"] - stays), "disk_written": 0}

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Add up two forwards of every direction and micro-batch, their copies, and the update.

        Transfers of streamed weights overlap with computing. Replays make later steps longer: the
        result is the mean over the steps of the run, or over the steps between two new bases, and
        includes a share of the time that a new base takes.
        """
        engine = self._config.engine
        if self._streams and self._has_new_bases(engine):
            costs, every = self._costs(engine, rehearsal, speeds), engine.base_steps
            self.figures["consolidation"] = {
                "every": every,
                "cheapest": costs.cheapest(engine.most_steps),
                "seconds": costs.of_base(every),
                "bytes_read": self._arena["base"],
                "bytes_written": self._arena["base"],
                "written_per_step": self._arena["base"] / every,
                "seconds_per_step": costs.of_base(every) / every,
            }
        return self._step_seconds(engine, rehearsal, speeds)

    def written_between_steps(self) -> float:
        """Bytes of a new base, divided by the number of steps between two of them."""
        return self.figures.get("consolidation", {}).get("written_per_step", 0)

    def chosen(self) -> list[str]:
        """Give the reasons for the number of directions and of steps between new bases."""
        titles = {"directions": "directions", "new_bases": "new bases"}
        return [
            f"{title}: {self.figures[key]['why']}"
            for key, title in titles.items()
            if key in self.figures
        ]

    def notes(self) -> list[str]:
        """Say what new bases cost, and what takes device memory if weights are streamed."""
        return [*self._consolidation_lines(), *self._ring_lines()]

    def _consolidation_lines(self) -> list[str]:
        if "consolidation" not in self.figures:
            return []
        new = self.figures["consolidation"]
        return [
            f"consolidation: a new base every {new['every']:,} steps, in {new['seconds']:.3g} s, "
            f"{format_bytes(new['bytes_read'])} read and as much written; a step's share is "
            f"{new['seconds_per_step']:.3g} s, which its seconds have, and "
            f"{format_bytes(round(new['written_per_step']))} written, which its bytes have not; a "
            f"step takes least with one every {new['cheapest']:,} steps"
        ]

    def _ring_lines(self) -> list[str]:
        if "ring" not in self.figures:
            return []
        parts = self.figures["device_parts"]
        listed = [f"{format_bytes(n)} {_DEVICE_PARTS[name]}" for name, n in parts.items() if n]
        return [f"device: {', '.join(listed)}", self.figures["ring"]]

    @staticmethod
    def _plans_bases(engine: ZoSection, speeds: dict[str, Any]) -> bool:
        """True if the steps between new bases are auto and the rate of the drive is known."""
        return engine.awaits_base_steps and bool(speeds["disk_gbps"])

    def _planned_bases(self, engine: ZoSection, costs: ConsolidationCosts) -> PlannedBases:
        return costs.choose(engine.most_steps, self._config.train.steps)

    def _has_new_bases(self, engine: ZoSection) -> bool:
        """True if the run makes at least one new base."""
        return engine.has_new_bases and self._config.train.steps > engine.base_steps

    def _step_seconds(
        self, engine: ZoSection, rehearsal: Rehearsal, speeds: dict[str, Any]
    ) -> float:
        if not self._streams:
            read_and_made = _MASTER_BYTES * self._elements + 2 * self._weight_bytes
            copies = engine.directions * read_and_made
            moved = copies + _UPDATE_BYTES * self._elements + self._image_bytes
            return self._computing(engine, rehearsal, moved, speeds)
        costs = self._costs(engine, rehearsal, speeds)
        if self._plans_bases(engine, speeds):
            engine = engine.with_base_steps(self._planned_bases(engine, costs).chosen)
        if self._has_new_bases(engine):
            return costs.means(engine.base_steps)[-1]
        return costs.without_base(self._config.train.steps)

    def _computing(
        self, engine: ZoSection, rehearsal: Rehearsal, moved: int, speeds: dict[str, Any]
    ) -> float:
        """Seconds of a step's forwards, and of moving `moved` bytes in device memory."""
        forward, _ = pass_seconds(rehearsal, speeds)
        return engine.forwards(self._config) * forward + moved / (1e9 * speeds["memory_gbps"])

    def _costs(
        self, engine: ZoSection, rehearsal: Rehearsal, speeds: dict[str, Any]
    ) -> ConsolidationCosts:
        links = self.links()
        moved = engine.directions * _COPIES_MOVED * self._weight_bytes
        if self._is_written and engine.narrow_wire is None:
            moved += _UPDATE_BYTES * self._elements
        working = self._computing(engine, rehearsal, moved, speeds)
        link = link_of(self._config, speeds)
        bringing = max(links["h2d"] / link.h2d_gbps, links["d2h"] / link.d2h_gbps) / 1e9
        core = _REPLAY_SECONDS * self._elements
        if (wire := engine.narrow_wire) is not None:  # The host writes steps and makes images.
            on_host = engine.directions * core + _IMAGE_SECONDS[wire] * self._elements
            bringing = max(bringing, on_host / torch.get_num_threads())
        on_device = (
            _REPLAY_FLOP * self._elements / (1e12 * speeds["tflops"])
            if self._on_card
            else core / engine.perturb_lanes
        )
        # Each direction replays all directions. Low-rank noise is summed up instead, and a step
        # that is written into the weights needs no replay.
        is_replayed = not self._factors and not self._is_written
        replaying = engine.directions**2 * on_device if is_replayed else 0.0
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
