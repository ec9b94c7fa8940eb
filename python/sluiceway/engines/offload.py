"""Full AdamW whose states are in host memory or on disk."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sluiceway import _core
from sluiceway.config.engines.offload import OffloadOptions, OffloadSection
from sluiceway.config.values import StoreOptions
from sluiceway.engines.engine import Ranges, Update
from sluiceway.engines.gradient import GradientEngine
from sluiceway.engines.offload_plan import OffloadPlan
from sluiceway.engines.resident import OPTIMIZER_FILE
from sluiceway.engines.state_file import read_state, write_state
from sluiceway.errors import InvalidArgument
from sluiceway.machine.placement import DTYPES, Placement
from sluiceway.model.speeds import disk_speed
from sluiceway.optim.common.state import STATE_KEY
from sluiceway.optim.offload.arguments import resolve_gradients
from sluiceway.optim.offload.cores import core_groups, core_lines
from sluiceway.optim.offload.open_streamed import open_streamed
from sluiceway.optim.offload.optimizer import OffloadAdamW
from sluiceway.optim.offload.spill_choice import Rates
from sluiceway.store.drives import find_drives
from sluiceway.text.batches import Batch


class Offload(GradientEngine):
    """The engine of `kind: offload`."""

    section = OffloadSection
    placement: Placement | None = None  # Set while a run is open; its process may be pinned.
    _pins = False  # The next step pins the saved step in the store.
    _noted: int | None = None  # Number of steps when `note_run` was last called.

    def plan(self, model: torch.nn.Module) -> OffloadPlan:
        """Predict memory, traffic and time of a run."""
        return OffloadPlan(self.config, model, self.placement)

    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> OffloadAdamW:
        """Make the optimizer, with lanes as the placement says."""
        engine, store = self.config.engine, self.config.store
        self.plan(model).check_disk()
        arguments: dict[str, Any] = {
            **self.lane_arguments(trace),
            **{name: getattr(engine, name) for name in OffloadOptions.model_fields},
            **{name: getattr(store, name) for name in StoreOptions.model_fields},
            "gradients": resolve_gradients(engine.gradients, model, self.placement.autocast_dtype),
            "micro_batches": self.config.parts,
            "_exact_norm": False,
            "_rates": Rates(self.config.device.disk_gbps, self.config.device.host_gbps),
            "_redo": self.placement.autocast == "fp16",  # The loss scale may change.
        }
        return OffloadAdamW(model, **arguments)

    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Open like every engine; the error text has the path if the store of a save is gone."""
        if (folder / OPTIMIZER_FILE).exists() and self.config.engine.commits:
            find_drives([*map(Path, self.config.store.paths)])
        super().open(folder, placement, trace)

    @property
    def _streams(self) -> bool:
        return self.config.engine.weights == "streamed"

    @property
    def _checkpoints(self) -> bool:
        return super()._checkpoints or self._streams

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Load the whole model of a folder, or open it for streaming."""
        if not self._streams:
            return super().load_model(folder)
        return open_streamed(folder, DTYPES[self.config.model.dtype], str(self.weights_device))

    @property
    def _has_codec(self) -> bool:
        return self.config.engine.codec != "identity"

    def description(self) -> list[str]:
        """Extend the lines by the gradients that cross the link as cores, if there is a codec.

        Warns if the disk waits for the codec.
        """
        if not self._has_codec:
            return super().description()
        if self.config.engine.commits:
            slow = self.plan(self.model).slow_codec(disk_speed(self.config)["disk_gbps"])
            if slow is not None:
                warnings.warn(slow, RuntimeWarning, stacklevel=2)
        optimizer = self.optimizer
        cores = core_lines(core_groups(optimizer), optimizer.uncompressed, optimizer.spill.why)
        return [*super().description(), *cores]

    def summary(self) -> dict[str, Any]:
        """Return what `description` says, as plain values."""
        if not self._has_codec:
            return super().summary()
        return {
            "codecs": core_groups(self.optimizer),
            "spill": self.optimizer.spill.spill,
            "parameters": {"uncompressed": self.optimizer.uncompressed},
        }

    def save(self, folder: Path) -> None:
        """Save like every engine; the store keeps the saved step once the save is in its place.

        Until then it keeps the step of the save before, so that a kill leaves one of the two saves
        usable.
        """
        self.optimizer.save_pretrained(folder)
        state, filled = self.optimizer.state_to_write()
        write_state(state, folder / OPTIMIZER_FILE, filled)
        self._pins = self.config.engine.commits

    def load(self, folder: Path) -> None:
        """Load like every engine; a store on disk keeps the step of the save from now on."""
        self.optimizer.load_state_dict(read_state(folder / OPTIMIZER_FILE, mapped=True))
        self._pins = self.config.engine.commits

    def check_new(self) -> None:
        """Refuse a store that another run has filled."""
        _, steps = self.optimizer.engine.generations[0]
        if steps:
            raise InvalidArgument(
                f"store.path: {self.config.store.place} holds step {steps} of another run; resume "
                "that run, or choose another path"
            )

    def note_run(self, run: bytes) -> None:
        """Store the bytes `run` in the commit of the last step."""
        self.optimizer.set_run_state(run)
        self._noted = self.optimizer.engine.committed_steps

    def committed_run(self, save: Path | None) -> bytes | None:
        """Return the bytes in the last commit if its step is later than the step of the save."""
        engine = self.optimizer.engine
        if save is not None:
            store = read_state(save / OPTIMIZER_FILE)[STATE_KEY].get("store")
            later = store and store["id"] == engine.store_id
            if not later or store["generation"] >= engine.generations[0][0]:
                return None
        return self.optimizer.run_state() or None

    def take_commit(self) -> None:
        """Resume the optimizer from the last commit."""
        self.optimizer.resume()

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Make a step like every engine with a backward."""
        if self._pins:
            self.optimizer.pin()
            self._pins = False
        if self._noted is None and self.config.engine.commits:
            self._noted = self.optimizer.engine.committed_steps
        return super().update(batches, ranges)

    def close(self) -> None:
        """Close the optimizer, but do not commit a step from which no run could resume."""
        if self._noted is not None:
            engine, noted, self._noted = self.optimizer.engine, self._noted, None
            if engine.committed_steps != noted:
                engine.leave_uncommitted()
        super().close()

    def trace(self) -> _core.Trace:
        """Return the trace of the compiled engine; its lanes are rows."""
        return self.optimizer.engine.trace
