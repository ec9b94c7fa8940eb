"""The base class of all engines; a run needs to know nothing else of an engine.

A run makes these calls, each of which relies on the ones before it:

A run makes these calls, each of which relies on the ones before it:

A run makes these calls, each of which relies on the ones before it:

    plan                    predicts what a run would take; loads nothing
    open, load              make model and optimizer; a run begins, or goes on from a save
    update                  makes one step; between two steps come metrics and save
    close

`ResidentEngine` has most of it for engines whose model is on the device, `GradientEngine` the step
of those that run a backward.
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


class Recorder(Protocol):
    """A trace that belongs to the engine; times are in microseconds of `_core.now_us`."""

    def add_trace_range(self, row: str, name: str, began_us: float, ended_us: float) -> None:
        """Put a range into a row."""


class BegunSave(Protocol):
    """A save of one step, which is written while later steps are made."""

    def write(self, folder: Path) -> None:
        """Write the same files as `Engine.save`. May run on any thread."""

    def finish(self, seconds: float | None = None) -> bool:
        """Wait until steps no longer have to wait for the save, at most `seconds`.

        Call it on the thread that makes steps. Without it `write` may wait for a step to come.

        Returns
        -------
        bool
            True if no step has to wait any more.
        """

    def close(self) -> None:
        """Stop writing. May run on any thread; idempotent."""


@dataclass(frozen=True)
class Update:
    """The result of one step."""

    loss: float  # Mean over the step's learned tokens, in nats; finite or not.
    skipped: bool  # Nothing of the step was kept.


class Engine(ABC):
    """One kind of engine, for one run.

    A subclass has to define the abstract methods. The others have defaults that suit an engine
    without the feature.

    Attributes
    ----------
    section : type
        The section of the config that the engine reads; the default of its `kind` is the kind.
    config : Config
    placement : Placement
        Set by `open`.
    model, optimizer
        Set by `open`. A run sets the learning rate in `optimizer.param_groups` before every step.
    scaler : torch.amp.GradScaler
        Set by `open`; disabled where no loss is scaled. A save has it beside the random generators.
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
        """Check the weights of a model folder or of a save of this engine; loads none of them."""

    @abstractmethod
    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Freeze what is not trained, set up checkpointing; `model` may be on the meta device."""

    @abstractmethod
    def plan(self, model: torch.nn.Module) -> EnginePlan:
        """Predict what training takes; `model` is prepared and has no storage."""

    # ---- A run ----

    @abstractmethod
    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Make model and optimizer from a model folder or a save.

        Parameters
        ----------
        trace : Path or None
            The file to which an engine with a trace of its own writes it in `close`.
        """

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load what `save` wrote beside the weights, which `open` has read."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and optimizer, so that `open` and `load` give the same bits back.

        The caller has synchronized. The folder is new; the caller adds the files of the tokenizer
        and of the run, makes the folder durable and puts it in its place.
        """

    @abstractmethod
    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Make one step; each micro-batch counts by the number of tokens that it learns."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Fields of the last step's line of metrics.jsonl that the engine knows.

        `grad_norm`, `loss_scale`, `stall_seconds`, `host_seconds`, `learn_seconds`, `bytes` and
        `peak_bytes` of what it uses, and under the name of its kind a dict of its own fields.
        """

    @abstractmethod
    def close(self) -> None:
        """Apply what is enqueued, write the trace, free all memory; idempotent."""

    def description(self) -> list[str]:
        """Lines to print before the first step."""
        return []

    def summary(self) -> dict[str, Any]:
        """Entries that the engine adds to summary.json."""
        return {}

    def recorder(self) -> Recorder | None:
        """The trace of the engine; None lets the run write the trace."""
        return None

    def watch_calibration(self, watch: Callable[[int, int], None]) -> None:
        """Call `watch` with the counts of fitted and all projectors while a first step fits them.

        `learn_seconds` of that step is time that no later step takes.
        """

    def settled(self) -> dict[str, Any]:
        """Values that `open` chose for keys of the section that are "auto".

        A save keeps these plain values, and a resume uses them again.
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
            The run's model or one from a save, of the config's type, where the config places it.
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
        """Bytes that crossed each link in `losses` since the last call; empty if none does."""
        return {}

    # ---- Saves ----

    def begin_save(self) -> BegunSave | None:
        """Begin a save of this step that is written beside later steps; None: call `save` instead.

        The caller has synchronized, has closed the save before, and closes this one.
        """
        return None

    def weights_of_step(
        self, save: Path, step: int
    ) -> AbstractContextManager[CopiedWeights] | None:
        """Give the weights after `step`, made from a save; None: the engine keeps no steps.

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
        """Let the commit of the last step carry `run`; the engine does not look into it."""

    def committed_run(self, save: Path | None) -> bytes | None:
        """Bytes that the last commit carries, or None if it is not later than `save`.

        Called after `open`, and before `load` or `take_commit`.
        """
        return None

    def take_commit(self) -> None:
        """Go on from the last commit; called in place of `load`."""
