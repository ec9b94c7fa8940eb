"""Predicts memory, traffic and seconds of a step of full AdamW with its states in a store."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.base.sizes import format_bytes
from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, pass_seconds
from sluiceway.errors import OutOfMemory
from sluiceway.machine.placement import DTYPES, Placement, choose_placement
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.model.speeds import link_of
from sluiceway.model.targets import CompressedWeight
from sluiceway.model.whole_weights import select_whole
from sluiceway.optim.common.tier_limits import planned_lane_threads
from sluiceway.optim.offload.arguments import (
    chunk_elements,
    offload_limits,
    resolve_gradients,
    resolve_policy,
)
from sluiceway.optim.offload.cores import core_options, target_of, tensor_specs
from sluiceway.optim.offload.open_streamed import ids_in_files
from sluiceway.optim.offload.spill_choice import (
    Rates,
    adam_seconds,
    choose_spill,
    no_room_for_cores,
)
from sluiceway.optim.offload.streamed_blocks import choose_streamed, fetch_footprint

_WAITING_BYTES = 256 << 20  # Largest size of gradients that wait to leave the device.


class OffloadPlan(DevicePlan):
    """The plan of `kind: offload`, from the shapes of all trained parameters."""

    advice = "try a smaller store.chunk, or engine.tier: disk"

    def __init__(
        self, config: Config, model: nn.Module, placement: Placement | None = None
    ) -> None:
        super().__init__(config, 0)
        engine = config.engine
        target, away = target_of(engine), ids_in_files(model)
        weights = select_whole("offload", model, target=target, away=away).compressed
        blocks, frozen = [], []
        elements = chunk_elements("store", config.store.chunk)
        if engine.weights == "streamed":
            away, frozen = choose_streamed("offload", model, weights, elements, engine)
            blocks = [of for _, of in away]
        self._streamed_bytes = sum(w.parameter.nbytes for w in (*weights, *frozen) if w.away)
        self._fetch = fetch_footprint([*weights, *frozen], blocks, elements, engine.state_codec)
        self._sizes = [w.parameter.numel() for w in weights]
        self._elements = sum(self._sizes)
        self._trained_bytes = sum(w.parameter.nbytes for w in weights)
        self._weight_bytes = sum(w.parameter.nbytes for w in weights if not w.away)
        placement = placement or choose_placement(config, of_plan=True)
        autocast = placement.autocast_dtype
        self._on_card = placement.device.type == "cuda"
        self._lane_threads = planned_lane_threads(config.device.lane_threads, placement)
        gradients = resolve_gradients(engine.gradients, model, autocast)
        self._may_redo = autocast == torch.float16 or config.train.max_norm is not None
        self._gradient_bytes = DTYPES[gradients].itemsize
        self.freed = frozenset(w.name for w in weights)
        self._on_disk, self._overflows = engine.tier == "disk", engine.tier == "auto"
        self._speculates = resolve_policy(engine) == "speculative"
        device = config.device
        choice = choose_spill(
            engine, gradients, device.link, Rates(device.disk_gbps, device.host_gbps)
        )
        cores = core_options(engine, config.train.seed, choice.spill)
        self._footprint = self._footprint_of([*weights, *frozen], gradients, cores)
        _, host, _, _ = offload_limits(engine.tier, config.budget)
        if choice.spill == "core" != engine.spill and self._host_bytes_of(self._footprint) > host:
            choice = no_room_for_cores()
            cores = core_options(engine, config.train.seed, choice.spill)
            self._footprint = self._footprint_of([*weights, *frozen], gradients, cores)
        self._spill = choice.spill
        in_backward = self._speculates and (self._backwards == 1 or self._footprint["core_weights"])
        kept = self._fetch["kept_bytes"] if in_backward and self._on_disk else 0
        self._kept_bytes = kept if self._host_bytes_of(self._footprint) + kept <= host else 0
        where = "on disk" if self._on_disk else "in host memory"
        if self._drive_share and not self._on_disk:
            where = f"in host memory, {self._drive_share:.0%} of the bytes on disk"
        self.figures = {
            "codec": engine.codec,
            "why": f"gradients in {gradients}, states in {engine.state_codec} {where}",
            "compressed_weights": self._footprint["core_weights"],
        }
        if self._footprint["core_weights"] and choice.why:
            self.figures["spill"] = {"chosen": choice.spill, "why": choice.why}
        self._codec_seconds = 0.0
        if candidates := [w.parameter for w in weights if not w.identity]:
            largest = max(candidates, key=torch.numel).shape
            each = _core.decompress_seconds(cores, *largest, gradients)
            self._codec_seconds = self._footprint["core_elems"] * each
            self.figures["codec_seconds"] = self._codec_seconds

    def _footprint_of(
        self, weights: list[CompressedWeight], gradients: str, cores: _core.CoreOptions
    ) -> dict[str, int]:
        config = self._config
        _, host, pinned, _ = offload_limits(config.engine.tier, config.budget)
        described = (
            tensor_specs(weights),
            gradients,
            chunk_elements("store", config.store.chunk),
            config.backwards,
            self._slots,
            host if self._overflows else None,
            pinned,
            cores,
            resolve_policy(config.engine),
            self._on_card,
            config.engine.state_codec,
        )
        bare = _core.offload_footprint(*described, 0)
        if not self._speculates:
            return bare
        return _core.offload_footprint(*described, max(0, host - self._host_bytes_of(bare)))

    @property
    def _drive_share(self) -> float:
        """The part of states, gradients and streamed weights that is on disk."""
        return 1.0 if self._on_disk else self._footprint["drive_share"]

    @property
    def _slots(self) -> int:
        """Copies of every state; in host memory the policy `spill` changes the only one."""
        if not self._on_disk:
            return 2 if self._speculates else 1
        # The store keeps a save beside the last step if training goes on after it.
        return 3 if self._config.train.save_every else 2

    @property
    def _backwards(self) -> int:
        return self._config.backwards

    def check_disk(self) -> None:
        """Refuse a budget that the store exceeds at its first save.

        Raises
        ------
        sluiceway.errors.OutOfMemory
            The text has the bytes of the store after its first save.
        """
        limit, needed = self._config.budget.disk, self._footprint["store_bytes"]
        saves = self._on_disk and self._config.train.save_every
        if saves and limit is not None and needed > limit:
            raise OutOfMemory(
                f"budget.disk: the store needs {needed} bytes ({format_bytes(needed)}), a third of "
                f"them for saves during training, the budget is {limit} bytes "
                f"({format_bytes(limit)}); raise it, or set train.save_every: 0"
            )

    def _host_bytes_of(self, footprint: dict[str, int]) -> int:
        """Host bytes of tables, arrived cores, waiting weights, and a store in memory."""
        store = 0 if self._on_disk else footprint["store_bytes"]
        names = ("table_bytes", "core_host_bytes", "parked_bytes")
        return store + sum(footprint[name] for name in names)

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """Add the ring, cores, rounding buffers and the store to the peak of a rehearsal."""
        store = self._footprint["store_bytes" if self._on_disk else "overflow_bytes"]
        # Until they leave, gradients have the type of their weights.
        waiting = min(_WAITING_BYTES, self._trained_bytes * self._whole_elements // self._elements)
        away = self._tiers_of_inputs()
        tiers = {
            "device": self._peak_of(rehearsal)
            - self._streamed_bytes
            + self._fetch["device_bytes"]
            + waiting
            + self._footprint["core_device_bytes"]
            + self._footprint["exit_bytes"],
            "host": self._host_bytes_of(self._footprint) + self._kept_bytes,
            "pinned": self._footprint["pinned_bytes"]
            + self._fetch["pinned_bytes"]
            + away["pinned"],
        }
        has_disk = self._on_disk or self._overflows
        return tiers | ({"disk": store + away["disk"]} if has_disk else {})

    @property
    def _whole_elements(self) -> int:
        """Elements of those gradients of one backward that cross the link whole."""
        return self._elements - self._footprint["core_elems"]

    @property
    def _whole_bytes(self) -> int:
        """Bytes of these gradients on the link."""
        return self._gradient_bytes * self._whole_elements

    @property
    def _whole_extents(self) -> int:
        """Bytes on disk of those gradients of one backward that crossed the link whole."""
        footprint = self._footprint
        return self._gradient_bytes * (footprint["stored_elems"] - footprint["core_stored_elems"])

    @property
    def _core_extents(self) -> int:
        """Bytes on disk of those gradients of one step that crossed the link as cores."""
        if self._speculates or self._spill == "core":
            return 0
        return self._gradient_bytes * self._footprint["core_stored_elems"]

    @property
    def _fetched_bytes(self) -> int:
        """Bytes of weights that the micro-batches of a step fetch."""
        return self._backwards * self._fetch["pass_bytes"]

    def links(self) -> dict[str, int]:
        """Count gradients to the host, weights back, and the disk's traffic.

        Cores, and the gradients decompressed from them, count once a step; whole gradients count
        once a backward. Speculative steps are assumed to need no correction. Streamed weights
        count twice a micro-batch, but for the last blocks, which stay from forward to backward.
        """
        states = self._footprint["state_bytes"]
        inputs = super().links()
        whole = self._backwards * self._whole_bytes
        links = {
            "d2h": whole + self._footprint["core_d2h_bytes"] + inputs["d2h"],
            "h2d": self._weight_bytes + self._fetched_bytes + inputs["h2d"],
        }
        if not (self._on_disk or self._overflows):
            return links
        # The norm of several backwards is that of their sum, for which they are read once more.
        reads = 2 if self._backwards > 1 and self._config.train.max_norm is not None else 1
        writes = 1
        if self._speculates and self._backwards == 1:
            reads, writes = 0, int(self._may_redo)
        whole = self._backwards * self._whole_extents
        reread = self._footprint["reread_bytes"] + self._fetched_bytes
        copied = self._footprint["copied_bytes"]
        each = states + self._core_extents
        spared = self._fetch["spared_bytes"] if self._kept_bytes else 0
        if self._backwards > 1:  # Other gradients are summed first.
            footprint = self._footprint
            spared = spared * footprint["core_stored_elems"] // max(1, footprint["stored_elems"])
        read, written = each + reads * whole + reread - spared, each + writes * whole + copied
        return links | {
            "disk_read": int(self._drive_share * read) + inputs.get("disk_read", 0),
            "disk_written": int(self._drive_share * written) + inputs.get("disk_written", 0),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Row with the seconds that the codec takes on the host, if gradients cross as cores."""
        seconds = self.figures.get("codec_seconds")
        return [] if seconds is None else [("of the host for the codec", f"{seconds:.3g}")]

    def chosen(self) -> list[str]:
        """Extend the lines by the resolved option `spill`, if the plan chose it."""
        spill = self.figures.get("spill")
        return super().chosen() + ([] if spill is None else [f"spill: {spill['why']}"])

    def slow_codec(self, disk_gbps: float | None) -> str | None:
        """Return a warning if the disk waits for the host to decompress gradients, else None.

        Parameters
        ----------
        disk_gbps : float or None
            Combined rate of reads and writes; None: not known.
        """
        if disk_gbps is None:
            return None
        links = self.links()
        disk = (links["disk_read"] + links["disk_written"]) / (1e9 * disk_gbps)
        if self._codec_seconds <= disk:
            return None
        return (
            f"engine.codec: the host decompresses for {self._codec_seconds:.3g} s of a step, "
            f"expected no more than the {disk:.3g} s of the disk; try a smaller engine.ratio, or "
            "codec: identity"
        )

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Overlap each micro-batch with its gradients' transfer, and the last one with all lanes.

        The disk's lanes work in parallel with the other lanes, so the slowest lane counts. A block
        computes while the weights of the next one are fetched. Lanes share links and drives: a step
        takes at least as long as all of its bytes take on each of these.
        """
        forward, backward = pass_seconds(rehearsal, speeds, len(self._sizes))
        link = link_of(self._config, speeds)
        share, disk_gbps = self._drive_share, speeds.get("disk_gbps") or math.inf
        slowest = min(link.h2d_gbps, disk_gbps / share if share else math.inf)
        # Beside the work of the device. The last blocks stay for the backward.
        fetch = self._fetch["forward_bytes"] / (1e9 * slowest)
        fetch_again = self._fetch["pass_bytes"] / (1e9 * slowest) - fetch
        forward, backward = max(forward, fetch), max(backward, fetch_again)
        # Inputs of blocks wait for link and drive, so that they do not pile up on the device.
        inputs = super().links()
        slowest = disk_gbps if self._place == "disk" else math.inf
        forward = max(forward, sum(self._inputs) / (1e9 * min(link.d2h_gbps, slowest)))
        backward = max(backward, sum(self._inputs) / (1e9 * min(link.h2d_gbps, slowest)))
        out = self._whole_bytes / (1e9 * link.d2h_gbps)
        last_out = out + self._footprint["core_d2h_bytes"] / (1e9 * link.d2h_gbps)
        back = self._weight_bytes / (1e9 * link.h2d_gbps)
        states, codec = self._footprint["state_bytes"], self._config.engine.state_codec
        host, threads = speeds["host_gbps"], self._lane_threads
        update = adam_seconds(codec, states, self._elements, host, threads)
        if self._spill == "core" and not self._speculates:
            update += self._codec_seconds  # Once more, by the update.
        if gbps := speeds.get("disk_gbps"):
            links = self.links()
            spilled = share * self._whole_extents / (1e9 * gbps)
            with_cores = spilled + share * self._core_extents / (1e9 * gbps)
            moved = links["disk_read"] + links["disk_written"] - share * self._fetched_bytes
            moved -= inputs.get("disk_read", 0) + inputs.get("disk_written", 0)
            traffic = moved / (1e9 * gbps)
            out, last_out = max(out, spilled), max(last_out, with_cores)
            update = max(update, traffic - (self._backwards - 1) * spilled - with_cores)
        parts = {
            "forward_s": forward,
            "backward_s": backward,
            "d2h_s": max(last_out, self._codec_seconds),
            "host_s": update,
            "h2d_s": back,
            "apply_s": 0.0,
        }
        # Payloads wait for the norm of all of them, where they do not begin without.
        last = _core.predict_step(
            order=self._config.schedule.order,
            norm_barrier=not self._speculates,
            **self._dealt(parts),
        )
        step = (self._backwards - 1) * max(forward + backward, out) + last
        return max(step, self._least_seconds(speeds))

    def _dealt(self, parts: dict[str, float]) -> dict[str, list[float]]:
        """Divide each of the times among the parameters, in proportion to their sizes."""
        return {
            name: [seconds * size / self._elements for size in self._sizes]
            for name, seconds in parts.items()
        }
