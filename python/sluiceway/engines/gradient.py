"""What engines share that learn from a backward: micro-batches, the loss scale, saves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from sluiceway.config.engine_section import EngineSection
from sluiceway.config.engines.native import NativeSection
from sluiceway.config.schema import Config
from sluiceway.engines.plan import DevicePlan, EnginePlan, trained_elements
from sluiceway.engines.protocol import Ranges, Recorder, Update
from sluiceway.engines.state_file import read_state, write_state
from sluiceway.engines.weights import SavedWeights, WeightFiles
from sluiceway.machine.device_ops import ops_on
from sluiceway.machine.placement import DTYPES, Placement
from sluiceway.model.folder import prepare_model
from sluiceway.model.loss import loss_of
from sluiceway.model.targets import embedding_parameters
from sluiceway.text.batches import Batch

OPTIMIZER_FILE = "optimizer.pt"


class SteppingOptimizer(Protocol):
    """A `torch.optim.Optimizer` that says how its last step went."""

    overflowed: bool  # The gradients were not finite: nothing was changed.

    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""

    def stats(self) -> dict[str, Any]:
        """What `Engine.metrics` asks for."""

    def close(self) -> None:
        """Free what it holds; idempotent."""


class GradientEngine(ABC):
    """An engine whose step is forward, backward, and a step of its optimizer.

    A subclass says which section it reads and makes the optimizer; the rest it may replace.
    """

    section: type[EngineSection]

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def make_optimizer(self, model: torch.nn.Module, trace: Path | None) -> Any:
        """The optimizer, a `SteppingOptimizer`, of a prepared model that is on its device."""

    def lane_arguments(self, trace: Path | None) -> dict[str, Any]:
        """What every optimizer with lanes of its own takes, which follow the placement."""
        config, train, placement = self.config, self.config.train, self.placement
        arguments: dict[str, Any] = {
            "lr": train.lr,
            "betas": train.betas,
            "eps": train.eps,
            "weight_decay": train.weight_decay,
            "max_norm": train.max_norm,
            "schedule": config.schedule.order,
            "norm_mode": config.schedule.norm,
            "device": placement.name,
            "link": config.device.link,
            "budget": config.budget,
            "accumulate": train.accumulate,
            "seed": train.seed,
            "trace": str(trace) if trace else None,
        }
        if placement.device_cpu is not None:
            arguments["_pin"] = (placement.device_cpu, placement.lane_cpu)
        return arguments

    @property
    def freezes_embeddings(self) -> bool:
        """Whether embeddings and head stay as they are."""
        return False

    # ---- Before anything is loaded ----

    def twin(self) -> NativeSection:
        """Plain AdamW over the same weights."""
        return NativeSection(embeddings="frozen" if self.freezes_embeddings else "trained")

    def weights(self, folder: Path) -> SavedWeights:
        """The safetensors of a folder: a save has them, too."""
        return WeightFiles(folder)

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Freeze the embeddings if they are to be, and set up checkpointing."""
        embeddings = "frozen" if self.freezes_embeddings else "trained"
        return prepare_model(model, embeddings, self.config.model.checkpointing)

    def plan(self, model: torch.nn.Module) -> EnginePlan:
        """Two moments for every parameter that is trained, as AdamW has them."""
        return DevicePlan(self.config, trained_elements(model))

    # ---- A run ----

    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Load the whole model onto its device, then build the optimizer."""
        self.placement = placement
        model = self.weights(folder).load(DTYPES[self.config.model.dtype], placement.device)
        self.model = self.prepare(model)
        self.optimizer = self.make_optimizer(self.model, trace)
        self.scaler = torch.amp.GradScaler(
            placement.device.type, enabled=placement.autocast == "fp16"
        )

    def load(self, folder: Path) -> None:
        """Restore the optimizer."""
        self.optimizer.load_state_dict(read_state(folder / OPTIMIZER_FILE))

    def save(self, folder: Path) -> None:
        """Write the model as transformers does, and the state of the optimizer."""
        self.model.save_pretrained(folder)
        write_state(self.optimizer.state_dict(), folder / OPTIMIZER_FILE)

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Forward and backward of every micro-batch, and the optimizer's step.

        A loss that is not finite ends the step before its backward, and nothing of the step is
        kept. Where the device works beside Python the loss is read after the step: then its
        gradients are made not finite either, and the optimizer skips it.
        """
        device = ops_on(self.placement.device)
        learned = sum(batch.learned for batch in batches)
        losses: list[tuple[Callable[[], torch.Tensor], float]] = []
        for batch in batches:
            share = batch.learned / learned
            with ranges.range("forward"):
                loss = loss_of(self.model, self.placement, batch)
                losses.append((device.fetch(loss.detach()), share))
            if not device.asynchronous and not math.isfinite(_mean(losses)):
                self.optimizer.zero_grad()
                return Update(_mean(losses), skipped=True)
            with ranges.range("backward"):
                seed = _finite_or_nan(loss.detach()) if device.asynchronous else None
                self.scaler.scale(loss * share).backward(seed)
        with ranges.range("optimizer step"):
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = bool(self.optimizer.overflowed) or self.scaler.get_scale() < scale
            self.optimizer.zero_grad()
        return Update(_mean(losses), skipped)

    def synchronize(self) -> None:
        """As the optimizer does."""
        self.optimizer.synchronize()

    def metrics(self) -> dict[str, Any]:
        """What the optimizer says, and the scale of the loss."""
        scale = {"loss_scale": self.scaler.get_scale()} if self.scaler.is_enabled() else {}
        return self.optimizer.stats() | scale

    def description(self) -> list[str]:
        """Whether embeddings and head are frozen, which nobody would guess."""
        if not self.freezes_embeddings:
            return []
        frozen = sum(p.numel() for _, p in embedding_parameters(self.model))
        everything = sum(p.numel() for p in self.model.parameters())
        return [
            f"embeddings and head are frozen, {frozen:,} of {everything:,} parameters; "
            "engine.embeddings is where to train them"
        ]

    def summary(self) -> dict[str, Any]:
        """Nothing to add."""
        return {}

    def recorder(self) -> Recorder | None:
        """None: the run writes the trace."""
        return None

    def close(self) -> None:
        """As the optimizer does."""
        self.optimizer.close()


def _mean(losses: Sequence[tuple[Callable[[], torch.Tensor], float]]) -> float:
    """Of micro-batches that weigh as much as is said beside each; waits for those on their way."""
    total = 0.0
    for read, share in losses:
        total += read().item() * share
    return total


def _finite_or_nan(loss: torch.Tensor) -> torch.Tensor:
    """What a backward of `loss` begins with: 1, or what spoils every gradient."""
    return torch.where(loss.isfinite(), 1.0, math.nan).to(loss.dtype)
