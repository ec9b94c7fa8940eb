"""What full AdamW takes on each tier and link with its states in a store, and a step's seconds."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway import _core
from sluiceway.config.schema import Config
from sluiceway.config.values import Link
from sluiceway.engines.plan import DevicePlan, micro_batch_seconds
from sluiceway.machine.placement import DTYPES, choose_placement
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.optim.offload.arguments import chunk_elements, resolve_gradients
from sluiceway.optim.tier_limits import tier_limits

_STATE_BYTES = 12  # Of an element: two moments and the master, read and written in a step.
_ADAM_BYTES = 28  # Read and written per element in memory: gradient, moments, master, weight.
_WAITING_BYTES = 256 << 20  # Most that gradients take on the device until they have left it.


class OffloadPlan(DevicePlan):
    """Predicted from the shapes of all trained parameters."""

    advice = "try a smaller store.chunk, or engine.tier: disk"

    def __init__(self, config: Config, model: nn.Module) -> None:
        super().__init__(config, 0)
        trained = {
            name: p for name, p in model.named_parameters() if p.requires_grad and p.numel() > 0
        }
        self._sizes = [p.numel() for p in trained.values()]
        self._elements = sum(self._sizes)
        self._weight_bytes = sum(p.nbytes for p in trained.values())
        autocast = choose_placement(config).autocast_dtype
        gradients = resolve_gradients(config.engine.gradients, model, autocast)
        self._gradient_bytes = DTYPES[gradients].itemsize
        self.freed = frozenset(trained)
        self._on_disk = config.engine.tier == "disk"
        where = "on disk" if self._on_disk else "in host memory"
        why = f"gradients in {gradients}, states {where}"
        self.figures = {"codec": "identity", "why": why, "compressed_weights": 0}
        _, _, pinned, _ = tier_limits(config.budget)
        self._footprint = _core.offload_footprint(
            self._sizes,
            [config.model.dtype] * len(self._sizes),
            gradients,
            chunk_elements("store", config.store.chunk),
            config.train.accumulate,
            # A save that training goes on after is kept beside the last step.
            3 if self._on_disk and config.train.save_every else 2,
            pinned,
        )

    @property
    def _backwards(self) -> int:
        return self._config.train.accumulate

    def tiers(self, rehearsal: Rehearsal) -> dict[str, int]:
        """The ring, and the store where it is."""
        store = self._footprint["store_bytes"]
        waiting = min(_WAITING_BYTES, self._gradient_bytes * self._elements)
        tiers = {
            "device": rehearsal.peak_bytes + waiting,
            "host": 0 if self._on_disk else store,
            "pinned": self._footprint["pinned_bytes"],
        }
        return tiers | ({"disk": store} if self._on_disk else {})

    @property
    def _extent_bytes(self) -> int:
        """Of a step's gradients on disk, one for each backward."""
        return self._backwards * self._gradient_bytes * self._footprint["stored_elems"]

    def links(self) -> dict[str, int]:
        """Every gradient out, every weight back; on disk the states both ways, and gradients."""
        states = _STATE_BYTES * self._footprint["stored_elems"]
        links = {
            "d2h": self._backwards * self._gradient_bytes * self._elements,
            "h2d": self._weight_bytes,
        }
        if not self._on_disk:
            return links
        # The norm of several backwards is that of their sum, for which they are read once more.
        reads = 2 if self._backwards > 1 and self._config.train.max_norm is not None else 1
        return links | {
            "disk_read": states + reads * self._extent_bytes,
            "disk_written": states + self._extent_bytes,
        }

    def seconds(self, rehearsal: Rehearsal, speeds: dict[str, Any]) -> float:
        """Micro-batches beside their gradients' way out, the last beside all lanes.

        Lanes of the disk go on beside the others of a chunk: the slowest counts.
        """
        forward, backward = micro_batch_seconds(rehearsal, speeds)
        link = self._config.device.link or Link(
            d2h_gbps=speeds["host_gbps"], h2d_gbps=speeds["host_gbps"]
        )
        out = self._gradient_bytes * self._elements / (1e9 * link.d2h_gbps)
        back = self._weight_bytes / (1e9 * link.h2d_gbps)
        update = _ADAM_BYTES * self._elements / (1e9 * speeds["host_gbps"])
        if gbps := speeds.get("disk_gbps"):
            links = self.links()
            spilled = self._extent_bytes / (1e9 * gbps)
            out = max(out, spilled / self._backwards)
            update = max(
                update, (links["disk_read"] + links["disk_written"]) / (1e9 * gbps) - spilled
            )
        parts = {
            "forward_s": forward,
            "backward_s": backward,
            "d2h_s": out,
            "host_s": update,
            "h2d_s": back,
            "apply_s": 0.0,
        }
        # Payloads wait for the norm of all of them.
        order = self._config.schedule.order
        last = _core.predict_step(order=order, norm_barrier=True, **self._dealt(parts))
        return (self._backwards - 1) * max(forward + backward, out) + last

    def _dealt(self, parts: dict[str, float]) -> dict[str, list[float]]:
        """Each parameter's part, by its size."""
        return {
            name: [seconds * size / self._elements for size in self._sizes]
            for name, seconds in parts.items()
        }
