"""The base class of all engines; a run needs to know nothing else of an engine.

A run makes these calls in this order:

    plan                    predicts what a run would take; loads nothing
    open, load              make model and optimizer; a run begins, or continues from a save
    update                  makes one step; between two steps come metrics and save
    close

`ResidentEngine` implements most of them for engines whose model is on the device, and
`GradientEngine` implements the step of engines that run a backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from sluiceway import _core
from sluiceway.config.engine_section import EngineSection
from sluiceway.config.schema import Config
from sluiceway.engines.plan import EnginePlan
from sluiceway.engines.weights import CopiedWeights, SavedWeights
from sluiceway.machine.placement import Placement
from sluiceway.model.loss import loss_of
from sluiceway.text.batches import Batch


class Ranges(Protocol):
    """A trace that records how long named blocks take."""

    def range(self, name: str) -> AbstractContextManager[None]:
        """Record the block."""


class BegunSave(Protocol):
    """A save of one step, which is written while later steps are made."""

    def write(self, folder: Path) -> None:
        """Write the same files as `Engine.save`; may run on any thread."""

    def finish(self, seconds: float | None = None) -> bool:
        """Wait, for at most `seconds`, until the save holds up no further step.

        Call it on the thread that makes steps. Without this call, `write` may wait for the next
        step.

        Returns
        -------
        bool
            True if the save holds up no further step.
        """

    def close(self) -> None:
        """Stop writing; may run on any thread; idempotent."""


@dataclass(frozen=True)
class Update:
    """The result of one step."""

    loss: float  # Mean over the step's learned tokens, in nats; finite or not.
    skipped: bool  # Nothing of the step was kept.


class Engine(ABC):
    """One kind of engine, for one run.

    A subclass has to define the abstract methods. The defaults of the other methods suit an engine
    that lacks the feature.

    Attributes
    ----------
    section : type
        The section of the config that the engine reads; the default of its key `kind` is the name
        of the engine's kind.
    config : Config
    placement : Placement
        Set by `open`.
    model, optimizer
        Set by `open`. A run sets the learning rate in `optimizer.param_groups` before every step.
    scaler : torch.amp.GradScaler
        Set by `open`; disabled if losses are not scaled. A save has its state beside that of the
        random generators.
    """

    section: ClassVar[type[EngineSection]]
    placement: Placement
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def __init__(self, config: Config) -> None:
        self.config = config

    # ---- Before anything is loaded ----

    @abstractmethod
    def twin(self) -> EngineSection:
        """Return the engine that `compare: native` measures first; it trains the same weights."""

    @abstractmethod
    def weights(self, folder: Path) -> SavedWeights:
        """Check the weights of a model folder or of this engine's save, without loading them."""

    @abstractmethod
    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Freeze untrained weights, and set up checkpointing; `model` may be on the meta device."""

    @abstractmethod
    def plan(self, model: torch.nn.Module) -> EnginePlan:
        """Predict memory, traffic and time of training; `model` is prepared and has no storage."""

    # ---- A run ----

    @abstractmethod
    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Make model and optimizer from a model folder or a save.

        Parameters
        ----------
        trace : Path or None
            The file to which `close` writes the trace of an engine that has one.
        """

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load everything that `save` wrote, except the weights, which `open` has read."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and optimizer, so that `open` and `load` restore them bit for bit.

        The caller has called `synchronize` and has made the folder. Afterwards the caller adds the
        files of the tokenizer and of the run, makes the folder durable and puts it in its place.
        """

    @abstractmethod
    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Make one step; each micro-batch is weighted by the number of its learned tokens."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Fields that the engine adds to the last step's line of metrics.jsonl.

        These are `grad_norm`, `loss_scale`, `stall_seconds`, `host_seconds`, `learn_seconds`,
        `bytes` and `peak_bytes` as far as they apply, and a dict of the engine's own fields under
        the name of its kind.
        """

    @abstractmethod
    def close(self) -> None:
        """Apply all enqueued steps, write the trace, and free all memory; idempotent."""

    def description(self) -> list[str]:
        """Lines to print before the first step."""
        return []

    def summary(self) -> dict[str, Any]:
        """Entries that the engine adds to summary.json."""
        return {}

    def trace(self) -> _core.Trace | None:
        """The trace of the engine, or None if it has none, so that the run writes one."""
        return None

    def watch_calibration(self, watch: Callable[[int, int], None]) -> None:
        """Call `watch(fitted, total)` with counts of projectors while the first step fits them.

        Only that step takes the time in its `learn_seconds`.
        """

    def settled(self) -> dict[str, Any]:
        """Values that `open` chose for those keys of the section that are "auto".

        A save keeps these values, and a resume uses them again.
        """
        return {}

    # ---- Evaluation ----

    def loss_on(
        self, model: torch.nn.Module, placement: Placement
    ) -> Callable[[Batch], torch.Tensor]:
        """Return a function that computes a batch's mean loss over learned tokens, in nats.

        Parameters
        ----------
        model : torch.nn.Module
            The run's model, or the model of a save, in the config's type and on the config's
            device.
        """
        return partial(loss_of, model, placement)

    @property
    def evaluated_at_once(self) -> int:
        """Largest number of batches to give to one call of `losses`."""
        return 1

    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Mean loss of each batch's learned tokens, in nats; the model is in evaluation mode."""
        loss = self.loss_on(self.model, self.placement)
        return [loss(batch).item() for batch in batches]

    def take_evaluation_bytes(self) -> dict[str, int]:
        """Bytes that `losses` moved over each link since the last call; empty if it moves none."""
        return {}

    # ---- Saves ----

    def begin_save(self) -> BegunSave | None:
        """Begin a save that is written while later steps run; None: the engine has only `save`.

        The caller has called `synchronize`, has closed the save before, and will close this one.
        """
        return None

    def weights_of_step(
        self, save: Path, step: int
    ) -> AbstractContextManager[CopiedWeights] | None:
        """Return the weights after `step`, made from a save; None: the engine keeps no steps.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            The save has no such step; the text names the steps that it has.
        """
        return None

    # ---- Commits: steps that are durable without a save, if `EngineSection.commits` ----

    def check_new(self) -> None:
        """Refuse a store that another run has filled; called after `open` of a new run.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            The text names the store.
        """

    def note_run(self, run: bytes) -> None:
        """Store the bytes `run` in the commit of the last step, without interpreting them."""

    def committed_run(self, save: Path | None) -> bytes | None:
        """Bytes that `note_run` stored in the last commit; None if `save` is as recent.

        Called after `open`, and before `load` or `take_commit`.
        """
        return None

    def take_commit(self) -> None:
        """Continue from the last commit; called in place of `load`."""
