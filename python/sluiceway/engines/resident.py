"""The base class of engines that keep the whole model on the device."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Protocol

import torch

from sluiceway.config.engines.native import NativeSection
from sluiceway.engines.engine import Engine
from sluiceway.engines.state_file import read_state, write_state
from sluiceway.engines.weights import SavedWeights, WeightFiles
from sluiceway.machine.placement import DTYPES, Placement
from sluiceway.model.folder import prepare_model
from sluiceway.model.targets import embedding_parameters

OPTIMIZER_FILE = "optimizer.pt"


class SteppingOptimizer(Protocol):
    """A `torch.optim.Optimizer` that returns the figures of its last step."""

    overflowed: bool  # The gradients were not finite: nothing was changed.

    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""

    def stats(self) -> dict[str, Any]:
        """Return the fields that `Engine.metrics` needs."""

    def close(self) -> None:
        """Free all memory; idempotent."""


class ResidentEngine(Engine):
    """An engine that loads a model like transformers and keeps all of it on the device.

    A subclass names its section, makes the optimizer and makes a step; it may override the rest.
    """

    @abstractmethod
    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> Any:
        """Make a `SteppingOptimizer` for a prepared model that is on its device."""

    # ---- Before anything is loaded ----

    def twin(self) -> NativeSection:
        """Return plain AdamW over the same weights."""
        return NativeSection(embeddings="frozen" if self._freezes else "trained")

    def weights(self, folder: Path) -> SavedWeights:
        """Return the safetensors of a model folder or of a save."""
        return WeightFiles(folder)

    @property
    def _freezes(self) -> bool:
        return self.config.engine.embeddings == "frozen"

    @property
    def _checkpoints(self) -> bool:
        """True if a backward computes each block again."""
        return self.config.model.checkpointing

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Freeze the embeddings if the engine does, and set up checkpointing."""
        return prepare_model(model, self.config.engine.embeddings, self._checkpoints)

    # ---- A run ----

    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Load the whole model onto its device, then build the optimizer."""
        self.placement = placement
        self.model = self.prepare(self.load_model(self.weights_folder(folder)))
        self.optimizer = self.make_optimizer(self.model, trace)
        self.scaler = torch.amp.GradScaler(
            placement.device.type, enabled=placement.autocast == "fp16"
        )

    def weights_folder(self, folder: Path) -> Path:
        """Return the folder of the weights with which a run begins or continues from a save."""
        return folder

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Load the whole model of a folder."""
        dtype = DTYPES[self.config.model.dtype]
        return self.weights(folder).load(dtype, self.weights_device)

    @property
    def weights_device(self) -> torch.device:
        """The device to which weights are loaded."""
        return self.placement.device

    def load(self, folder: Path) -> None:
        """Restore the optimizer."""
        self.optimizer.load_state_dict(read_state(folder / OPTIMIZER_FILE))

    def save(self, folder: Path) -> None:
        """Write the model like transformers, and the state of the optimizer."""
        self.save_model(folder)
        write_state(self.optimizer.state_dict(), folder / OPTIMIZER_FILE)

    def save_model(self, folder: Path) -> None:
        """Write the model's configs and weights."""
        self.model.save_pretrained(folder)

    def synchronize(self) -> None:
        """Wait for the optimizer."""
        self.optimizer.synchronize()

    def metrics(self) -> dict[str, Any]:
        """Return the figures of the optimizer and the loss scale."""
        scale = {"loss_scale": self.scaler.get_scale()} if self.scaler.is_enabled() else {}
        return self.optimizer.stats() | scale

    def description(self) -> list[str]:
        """Say that embeddings and head are frozen, if they are, as users do not expect this."""
        if not self._freezes:
            return []
        frozen = sum(p.numel() for _, p in embedding_parameters(self.model))
        everything = sum(p.numel() for p in self.model.parameters())
        return [
            f"embeddings and head are frozen, {frozen:,} of {everything:,} parameters; "
            "engine.embeddings is where to train them"
        ]

    def close(self) -> None:
        """Close the optimizer."""
        self.optimizer.close()
