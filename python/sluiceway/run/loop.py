"""The training loop, the same for every engine: micro-batches, step, evaluation, save."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sluiceway.base.interrupt import Interrupt, Interrupted
from sluiceway.config.schema import Config, TrainSection
from sluiceway.engines.engine import Engine, Update
from sluiceway.errors import InvalidArgument
from sluiceway.machine.footprint import DevicePeak, peak_resident_bytes
from sluiceway.run.checkpoint import Position
from sluiceway.run.held_out import mean_loss
from sluiceway.run.saves import Saves
from sluiceway.run.step_figures import Diverged
from sluiceway.run.timeline import Timeline
from sluiceway.text.batches import Batches, Prefetch

if TYPE_CHECKING:
    from sluiceway.run.session import Inputs

# Fields of a line if the engine does not report them.
_NOTHING = {
    "grad_norm": None,
    "loss_scale": None,
    "stall_seconds": 0.0,
    "host_seconds": 0.0,
    "bytes": {"d2h": 0, "h2d": 0, "disk_read": 0, "disk_written": 0},
    "peak_bytes": {"host": 0, "pinned": 0},
}


def learning_rates(train: TrainSection) -> Callable[[int], float]:
    """Return a function of a step, counted from 0: linear warmup, then the schedule's course.

    The rate depends on the step alone, so that a resumed run needs no state of a scheduler. The
    warmup ends with the full rate and has no step of rate 0, unlike that of transformers.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        An option of the schedule is missing, unknown, or has a value that it cannot have.
    """
    from transformers import get_scheduler

    nothing = torch.optim.SGD([torch.zeros(())], lr=train.lr)
    options = train.schedule_options
    try:
        course = get_scheduler(train.schedule, nothing, train.warmup, train.steps, options)
        factor = course.lr_lambdas[0]
        factor(train.warmup)
    except (TypeError, ValueError, ArithmeticError) as error:
        reason = str(error).rpartition("() ")[2]
        raise InvalidArgument(
            f"train.schedule_options: {options} does not suit the schedule {train.schedule}: "
            f"{reason}"
        ) from None
    if options and train.schedule.startswith("constant"):
        raise InvalidArgument(
            f"train.schedule_options: {options}, expected none: the schedule {train.schedule} has "
            "no options"
        )

    def rate(step: int) -> float:
        if step < train.warmup:
            return train.lr * (step + 1) / train.warmup
        return train.lr * factor(step)

    return rate


def is_over(train: TrainSection, position: Position) -> bool:
    """Tell whether a run has made its last step, or has stopped early."""
    patience = train.early_stopping_patience
    return position.step >= train.steps or (
        patience is not None and position.evaluations_since_best >= patience
    )


@dataclass(frozen=True)
class RunContext:
    """The objects with which a run computes, built once."""

    inputs: Inputs
    engine: Engine
    peak: DevicePeak
    timeline: Timeline

    @property
    def model(self) -> torch.nn.Module:
        """The model of the engine, in training mode."""
        return self.engine.model


class Loop:
    """Makes steps from `position` to the last step of the config.

    Parameters
    ----------
    watch : callable
        Gets a line for every step, and before the first step one with the held-out loss.
    saves : Saves or None
        Saves the run as it is between two steps; None: it is not saved.
    note : callable or None
        Called after every step, when the run is in a state from which a resume can continue.
    keep : callable or None
        Called after a save of the step that has the lowest held-out loss so far.
    """

    def __init__(
        self,
        config: Config,
        context: RunContext,
        position: Position,
        interrupt: Interrupt,
        watch: Callable[[dict[str, Any]], None],
        saves: Saves | None,
        note: Callable[[], None] | None = None,
        keep: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._context = context
        self._position = position
        self._interrupt = interrupt
        self._watch = watch
        self._saves = saves
        self._note = note
        self._keep = keep
        self._rate = learning_rates(config.train)

    def run(self) -> None:
        """Train to the last step.

        Raises
        ------
        Interrupted
            A signal came; the step in flight is finished and saved.
        KeyboardInterrupt
            A signal came, and nothing is to be saved.
        Diverged
            Too many steps in a row were skipped.
        """
        position, train = self._position, self._config.train
        inputs = self._context.inputs
        batches = Batches(inputs.train, train.micro_batch, train.seed)
        self._context.model.train()
        with contextlib.closing(
            Prefetch(batches, position.batch, cpu=inputs.placement.lane_cpu)
        ) as data:
            self._interrupt.defer()
            if position.step == 0 and inputs.held_out is not None:
                line = {"step": 0, **self._evaluate()}
                position.first_eval_loss = line["eval_loss"]
                self._watch(line)
            while not is_over(train, position):
                if self._interrupt.requested:
                    self._stop()
                self._one_step(data)

    def _stop(self) -> None:
        if self._saves is None:
            raise KeyboardInterrupt
        with self._interrupt.in_flight():
            self._context.engine.synchronize()
        self._saves.complete(self._position)
        raise Interrupted

    def _one_step(self, data: Prefetch) -> None:
        position, train = self._position, self._config.train
        saving = self._saves is not None and self._saves.is_under_way
        began = time.perf_counter()
        batches = [data.next() for _ in range(train.accumulate)]
        waited = time.perf_counter() - began
        rate = self._rate(position.step)
        # Before the first backward: work of a step may start before step() is called.
        for group in self._context.engine.optimizer.param_groups:
            group["lr"] = rate
        with self._interrupt.in_flight(self._waits_for_save):
            with self._context.timeline.range(f"step {position.step + 1}"):
                update = self._context.engine.update(batches, self._context.timeline)
            position.step += 1
            position.batch += len(batches)
            evaluates, saves = self._is_due(train.eval_every, True), self._is_due(train.save_every)
            if evaluates or saves:
                self._context.engine.synchronize()
        seconds = time.perf_counter() - began
        line = self._line(update, rate, sum(b.tokens for b in batches), seconds, waited)
        line |= {"saving": 1} if saving else {}
        if evaluates and self._context.inputs.held_out is not None:
            line |= self._evaluate()
            position.last_eval_loss = line["eval_loss"]
        self._watch(line)
        if self._note is not None:
            self._note()
        self._check_skipped(update.loss)
        if self._saves is not None:
            self._saves.check()
            if self._keep is not None and position.best_step == position.step:
                with self._context.timeline.range("save"):
                    self._saves.complete(position)
                self._keep()
            elif saves:
                with self._context.timeline.range("save"):
                    self._saves.begin(position)

    def _waits_for_save(self) -> bool:
        return self._saves is not None and self._saves.is_writing

    def _is_due(self, every: int, at_the_end: bool = False) -> bool:
        step, last = self._position.step, self._config.train.steps
        return (every > 0 and step % every == 0 and step < last) or (at_the_end and step == last)

    def _evaluate(self) -> dict[str, Any]:
        """Return fields of a line: mean held-out loss, in nats, and bytes that evaluation moved."""
        train, context = self._config.train, self._context
        engine = context.engine
        engine.synchronize()
        with context.timeline.range("evaluation"):
            loss, _ = mean_loss(
                context.model, context.inputs.held_out, train.micro_batch, engine.losses,
                train.eval_sequences, at_once=engine.evaluated_at_once,
            )  # fmt: skip
        self._position.note_evaluation(loss, train.early_stopping_threshold)
        crossed = engine.take_evaluation_bytes()
        return {"eval_loss": loss} | ({"eval_bytes": crossed} if crossed else {})

    def _line(
        self, update: Update, rate: float, tokens: int, seconds: float, waited: float
    ) -> dict[str, Any]:
        position, found = self._position, _NOTHING | self._context.engine.metrics()
        position.tokens += tokens
        position.seconds += seconds
        position.skipped += update.skipped
        position.skipped_in_row = position.skipped_in_row + 1 if update.skipped else 0
        line = {"step": position.step, "loss": update.loss, "lr": rate}
        line["grad_norm"] = None if update.skipped else found["grad_norm"]
        line |= {"tokens": tokens, "skipped": int(update.skipped)}
        line["loss_scale"] = found["loss_scale"]
        line |= {"seconds": seconds, "data_seconds": waited}
        line["device_seconds"] = max(0.0, seconds - waited - found["stall_seconds"])
        # Fields that only one engine has are under the name of its kind.
        known = ("stall_seconds", "host_seconds", "learn_seconds", "bytes")
        line |= {key: found[key] for key in (*known, self._config.engine.kind) if key in found}
        line["peak_bytes"] = found["peak_bytes"] | {"process": peak_resident_bytes()}
        line["peak_bytes"].setdefault("device", self._context.peak.read())
        return line

    def _check_skipped(self, loss: float) -> None:
        position, most = self._position, self._config.train.max_skipped
        if position.skipped_in_row < most:
            return
        self._context.engine.synchronize()
        reason = f"the loss is {loss}" if not math.isfinite(loss) else "the gradient is not finite"
        raise Diverged(
            f"step {position.step}: skipped, as were all of the last {most} steps: {reason}, "
            "expected finite numbers; try a smaller train.lr, or bf16 in place of fp16"
        )
