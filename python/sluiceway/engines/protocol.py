"""What a run asks of its engine; everything that differs between kinds of engine is behind it.

An engine lives through these calls, each later one on what the one before it left:

    plan                                            nothing is loaded: what a run would take
    open, load    model and optimizer exist         a run begins, or goes on from a save
    update        once a step                       between two of them: metrics, save
    close

`ResidentEngine` has most of it for engines whose model is on the device, `GradientEngine` the step
of those that run a backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from sluiceway.config.engine_section import EngineSection
from sluiceway.config.schema import Config
from sluiceway.engines.plan import EnginePlan
from sluiceway.engines.weights import CopiedWeights, SavedWeights
from sluiceway.machine.placement import Placement
from sluiceway.text.batches import Batch


class Ranges(Protocol):
    """Records how long named blocks take."""

    def range(self, name: str) -> AbstractContextManager[None]:
        """Record the block."""


class Recorder(Protocol):
    """A trace of the engine's own; times are in microseconds of `_core.now_us`."""

    def add_trace_range(self, row: str, name: str, began_us: float, ended_us: float) -> None:
        """Put a range into a row."""


@runtime_checkable
class Calibrates(Protocol):
    """What an engine may have besides: a first step that is longer, as projectors are fitted."""

    def watch_calibration(self, watch: Callable[[int, int], None]) -> None:
        """Tell `watch` how many of how many are fitted, as they are.

        The step's `learn_seconds` are then no part of what later steps will take.
        """


@runtime_checkable
class Settles(Protocol):
    """What an engine may have besides: keys of its section that are "auto" until it is open."""

    def settled(self) -> dict[str, Any]:
        """What such keys came to, in plain values; a resume goes on with them."""


@runtime_checkable
class Commits(Protocol):
    """What an engine may have besides: steps that are durable without a save.

    A run asks for it where `EngineSection.commits` says so.
    """

    def check_new(self) -> None:
        """Refuse a store that another run has filled; of a run that begins, after `open`.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            It names the store.
        """

    def note_run(self, run: bytes) -> None:
        """Let the commit of the step that was made carry `run`, whatever it is."""

    def committed_run(self, save: Path | None) -> bytes | None:
        """What the last commit carries, if it is later than `save`; None: there is none such.

        Asked after `open`, before `load` or `take_commit`.
        """

    def take_commit(self) -> None:
        """Go on from the last commit, in place of `load`."""


class BegunSave(Protocol):
    """What `save` would have written when it was begun."""

    def write(self, folder: Path) -> None:
        """As `save`, on any thread, beside steps."""

    def finish(self, seconds: float | None = None) -> bool:
        """Wait until steps are not held up by it, or for so long; whether they are not.

        On the thread of the steps. Without it `write` may wait for steps to come.
        """

    def close(self) -> None:
        """Nothing more is written; on any thread, idempotent."""


@runtime_checkable
class SavesAside(Protocol):
    """What an engine may have besides: saves that are written while steps go on."""

    def begin_save(self) -> BegunSave | None:
        """A save of this step, one at a time, to be closed; None: `save` is to be called.

        The caller has synchronized.
        """


@runtime_checkable
class KeepsSteps(Protocol):
    """What an engine may have besides: saves of which weights of steps before can be made."""

    def weights_of_step(self, save: Path, step: int) -> AbstractContextManager[CopiedWeights]:
        """Those that the run had after `step`; its config names what lies in its folder.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            There are none of this step; the text says of which there are.
        """


@runtime_checkable
class Evaluates(Protocol):
    """What an engine may have besides: evaluation that brings weights once for several batches.

    Without it a run makes a plain forward of `model` for each.
    """

    @property
    def evaluated_at_once(self) -> int:
        """Most batches that `losses` is to be given."""

    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Mean loss of each batch's learned tokens, in nats; the model is in evaluation mode."""

    def take_evaluation_bytes(self) -> dict[str, int]:
        """Bytes by link of all `losses` since this was asked last; empty where nothing crosses."""


@runtime_checkable
class HasLoss(Protocol):
    """What an engine may have besides: a loss of its own, for steps and for evaluations.

    Without it the loss is the model's.
    """

    def loss_on(
        self, model: torch.nn.Module, placement: Placement
    ) -> Callable[[Batch], torch.Tensor]:
        """Mean loss of a batch's learned tokens, in nats, of the run's model or of one of a save.

        `model` has the config's type, and is where the config places it.
        """


@dataclass(frozen=True)
class Update:
    """What one step came to."""

    loss: float  # Mean over the step's learned tokens, in nats; finite or not.
    skipped: bool  # Nothing of the step was kept.


class Engine(Protocol):
    """One kind of engine, for one run.

    Attributes
    ----------
    section : type
        What it reads of the config; the default of its `kind` is the kind's name.
    model, optimizer
        After `open`. Learning rates are set in `optimizer.param_groups` before every step.
    scaler : torch.amp.GradScaler
        After `open`; disabled where no loss is scaled. Saved beside the random generators.
    """

    section: ClassVar[type[EngineSection]]
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def __init__(self, config: Config) -> None: ...

    def twin(self) -> EngineSection:
        """The engine that `compare: native` measures first, training the same weights."""

    def weights(self, folder: Path) -> SavedWeights:
        """Weights of a model folder, or of a save of this engine; checked, not loaded."""

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Freeze what is not trained and set up checkpointing; also on a meta device."""

    def plan(self, model: torch.nn.Module) -> EnginePlan:
        """What training would take; `model` is prepared and has no storage."""

    def open(self, folder: Path, placement: Placement, trace: Path | None) -> None:
        """Bring model and optimizer into being from a model folder or a save.

        Parameters
        ----------
        trace : Path or None
            Where an engine with a trace of its own writes it at `close`.
        """

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote beside the weights, which `open` has read."""

    def save(self, folder: Path) -> None:
        """Write weights and optimizer, so that `open` and `load` give the same bits back.

        The caller has synchronized. The folder is new and has files of the tokenizer and of the
        run, too; it is made durable and put in place when this returns.
        """

    def update(self, batches: Sequence[Batch], ranges: Ranges) -> Update:
        """Make one step from its micro-batches; batches weigh as many tokens as they learn."""

    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""

    def metrics(self) -> dict[str, Any]:
        """Fields of the last step's line of metrics.jsonl that the engine knows.

        `grad_norm`, `loss_scale`, `stall_seconds`, `host_seconds`, `learn_seconds`, `bytes` and
        `peak_bytes` of what it uses, and under the name of its kind a dict of fields of its own.
        """

    def description(self) -> list[str]:
        """Lines that are printed before the first step."""

    def summary(self) -> dict[str, Any]:
        """Entries of summary.json that are the engine's own."""

    def recorder(self) -> Recorder | None:
        """Who writes the trace; None: the run does."""

    def close(self) -> None:
        """Apply what is enqueued, write the trace, free; idempotent."""
