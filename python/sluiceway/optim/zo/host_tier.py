"""Tiers whose weights are streamed to the device, and whose steps are records of a log.

A parameter's own data is the base, or empty if the base is on disk. During a step, parameters hold
slots of the engine's ring. Outside of a step, theta is computed when a parameter is read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.ownership import hold
from sluiceway.optim.zo.base import Base
from sluiceway.optim.zo.base_weights import BaseWeights
from sluiceway.optim.zo.forward_order import ForwardOrder, watch_forward
from sluiceway.optim.zo.host_base import HostBase
from sluiceway.optim.zo.host_memory import move_buffers
from sluiceway.optim.zo.logged_engine import LoggedEngine, StreamingEngine, bytes_beside
from sluiceway.optim.zo.measurement import Copies, Measured, Measurement, Unit, plain_halves
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.reader import Reader
from sluiceway.optim.zo.tier import Closure, Training
from sluiceway.optim.zo.weights import TrainedWeight

Use = tuple[int, nn.Parameter]
_TIERS = ("device", "host", "pinned")


class StreamedTier:
    """Streams weights to the halves, which meet at every module that reads weights.

    Parameters
    ----------
    training : Training
        Its parameters are moved to the base.
    base : Base
    engine : StreamingEngine

    Raises
    ------
    InvalidArgument
        A frozen parameter is not on the device; nothing was moved.
    """

    blocks = None

    def __init__(self, training: Training, base: Base, engine: StreamingEngine) -> None:
        self._of, self._lies, self._engine = training, base, engine
        move_buffers(training)
        self._lies.take()
        self._order: ForwardOrder | None = None
        self._holding: dict[tuple[int, int], list[Use]] = {}
        self._evaluating = False
        self._raw: dict[str, Any] = {}
        parameters = [w.parameter for w in training.weights]
        with ExitStack() as undo:
            self._base = self._theta_of_base()
            undo.callback(self._base.close)
            self._reader = Reader(training.model, parameters, self._base)
            undo.callback(self._reader.close)
            self.set_gammas()
            undo.pop_all()
        hold(self)

    def _theta_of_base(self) -> BaseWeights:
        return BaseWeights(self._of, self._engine, self._lies)

    @property
    def committed_steps(self) -> int:
        """Number of steps that the engine has committed."""
        return self._engine.get().next_step

    def has(self, parameter: torch.Tensor) -> bool:
        """Tell whether a parameter is streamed here, so that no other optimizer may take it."""
        return self._engine.is_open and self._base.has(parameter)

    def check_between_steps(self, function: str) -> None:
        """Check that no step is under way, for functions that a closure must not call.

        Raises
        ------
        InvalidArgument
            A pass is under way.
        """
        if self._reader.is_off:
            raise InvalidArgument(
                f"{self._of.owner}.{function}: a step is under way; call it between steps, outside "
                "of the closure"
            )

    def rest(self) -> None:
        """Restore parameters whose data an interrupted forward has left replaced."""
        self._reader.rest()

    # ---- The forward ----

    def _know(self, closures: Sequence[Closure]) -> None:
        self._engine.get()
        self._settle()  # If the end of the last pass was interrupted.
        if self._order is None:
            order = watch_forward(self._of.owner, self._reader, self._of.weights, closures[0])
            self._stream(order)
        self._position = -1

    def _stream(self, order: ForwardOrder) -> None:
        """Tell the engine what to stream: one use of a weight for each call that reads it."""
        engine = self._engine.get()
        uses, self._uses_of_call, self._calls_of_unit = [], [], {}
        for call, unit in enumerate(order.calls):
            first, weights = len(uses), order.weights[unit]
            uses += [self._use_of(w, call) for w in weights]
            self._uses_of_call.append([(first + i, w.parameter) for i, w in enumerate(weights)])
            self._calls_of_unit.setdefault(unit, []).append(call)
        if uses:
            engine.stream(uses)
        self.measured = self._measured(order)
        self._order = order

    def _use_of(self, weight: TrainedWeight, call: int) -> tuple[Any, ...]:
        p, number = weight.parameter, self._lies.number(weight.parameter)
        with torch_private.asking_no_class():
            like = self._lies.of(p) if number < 0 else p.data
        return weight.name, like, weight.group, call, p.dim() < 2, number

    def _measured(self, order: ForwardOrder) -> Measured:
        names = {module: name for name, module in self._of.model.named_modules()}
        units = [Unit(f"module {names[m] or type(m).__name__}", m) for m in order.modules]
        parameters = [w.parameter for w in self._of.weights]
        return Measured(self._of.owner, self._of.model, units, parameters, self._base.poison())

    # ---- WeightSource ----

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Return slots of the ring, or copies of weights that are held around other units."""
        if unit in self._order.held:
            return self._perturbed(self._order.weights[unit], direction)
        if direction == 0:  # The first direction of the unit.
            calls = self._calls_of_unit[unit]
            later = bisect_right(calls, self._position)
            self._position = calls[later % len(calls)]
        engine, compute = self._engine.get(), self._of.device.compute()
        copies, held = [], self._holding.setdefault((unit, direction), [])
        for use, p in self._uses_of_call[self._position]:
            plus = engine.acquire(use, direction, False, compute)
            held.append((use, p))
            sides = (plus,)
            if not self._evaluating:
                sides = (plus, engine.acquire(use, direction, True, compute))
            copies.append(Copies(p, sides))
        return copies

    def release(self, unit: int, direction: int) -> None:
        """Give the slots back to the ring."""
        compute = self._of.device.compute()
        for use, _ in self._holding.pop((unit, direction), []):
            self._engine.get().release(use, direction, compute)

    def throughout(self, direction: int) -> list[Copies]:
        """Copy the weights that the closure reads outside of all modules."""
        return self._perturbed(self._order.throughout, direction)

    def _perturbed(self, weights: list[TrainedWeight], direction: int) -> list[Copies]:
        if self._evaluating:
            return [Copies(w.parameter, (self._base.theta(w.parameter),)) for w in weights]
        return [Copies(w.parameter, self._base.neighbours(w, direction)) for w in weights]

    # ---- A pass ----

    def begin(self, closures: Sequence[Closure]) -> None:
        """Watch the forward unless it is known, and begin a step."""
        self._know(closures)
        self._engine.get().begin_step()
        self._evaluating = False

    def measuring(self) -> AbstractContextManager:
        """Return a context in which only units bring weights, and the reader does not."""
        return self._reader.off()

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Let the engine make the step, which computes the updates itself."""
        rates = [(float(g["lr"]), float(g["weight_decay"])) for g in self._of.param_groups]
        try:
            self._commit(gradients, rates, non_finite)
        finally:
            self._end()

    def committing(self) -> AbstractContextManager:
        """Return an empty context: a commit may wait for a lane, and Ctrl-C ends that."""
        return nullcontext()

    def _commit(self, g: list[float], rates: list[tuple[float, float]], non_finite: bool) -> None:
        self._engine.get().commit(g, rates, non_finite)

    def abandon(self) -> None:
        """End the pass."""
        if self._engine.is_open:
            self._end()

    def evaluate(self, closures: Sequence[Closure]) -> list[Any]:
        """Evaluate all closures in one pass over the weights."""
        self._know(closures)
        self._engine.get().begin_evaluation()
        self._evaluating = True
        try:
            measurement = Measurement(self.measured, self, plain_halves(len(closures)))
            with Undisturbed() as quiet, self.measuring():
                return measurement.run(closures, quiet)
        finally:
            self._end()

    def _end(self) -> None:
        self._settle()
        if self._engine.get().streams:
            self._raw = self._engine.get().take_stats()

    def _settle(self) -> None:
        for unit, direction in list(self._holding):
            self.release(unit, direction)
        self._engine.get().finish()
        self.set_gammas()

    def set_gammas(self) -> None:
        """Copy the engine's gammas into the parameter groups."""
        for group, gamma in zip(self._of.param_groups, self._engine.get().gammas, strict=True):
            group["gamma"] = gamma

    # ---- Numbers, and the end ----

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory."""
        return self._base.theta_on_host(p) if self._base.has(p) else p.detach().cpu()

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Return no shapes: parameters have no state, the engine has it."""
        return {}

    def stats(self) -> dict[str, Any]:
        """Bytes that crossed links or were read in the last pass, and the device's waiting time."""
        raw = self._raw
        if not raw:
            return {}
        crossed = {"d2h": raw["d2h_bytes"], "h2d": raw["h2d_bytes"]}
        return {
            "bytes": {**crossed, "disk_read": raw["disk_read_bytes"], "disk_written": 0},
            "stall_seconds": raw["stall_seconds"],
            "peak_bytes": self._peaks(raw["peak_bytes"]),
        }

    def _peaks(self, of_engine: dict[str, int]) -> dict[str, int]:
        """Peak bytes by tier: of the engine, of torch on the device, and of the base.

        The engine reserves the memory beside the weights, which torch counts too. On the host
        device torch also counts the base.
        """
        device, base = self._of.device, self._lies.memory()
        peaks = {tier: of_engine[tier] + base.get(tier, 0) for tier in _TIERS}
        counted = 0 if device.asynchronous else self._lies.tensor_bytes
        torch_has = device.peak_bytes() - counted
        peaks["device"] += max(0, torch_has - bytes_beside(self._of))
        return peaks

    def close(self, theta: bool = True) -> None:
        """Leave theta in the parameters, and write the trace.

        Raises
        ------
        InvalidArgument
            A pass is under way; it continues.
        """
        if not self._engine.is_open:
            return
        self.check_between_steps("close")
        engine, trace = self._engine.get(), self._of.options.trace
        self._reader.close()
        self._base.close()
        if theta:
            self._base.give_theta()
        try:
            if trace is not None and engine.streams:
                engine.write_trace(os.fspath(trace))
        finally:
            del engine
            self._engine.close()
            self._lies.close()


class HostTier(StreamedTier):
    """Keeps a base that is never written, and a log from which theta is computed.

    Parameters
    ----------
    training : Training
        Its parameters are moved to the base.
    base : Base, optional
        A base in host memory by default.

    Raises
    ------
    InvalidArgument, IoError, Corrupt, Unavailable
        The log belongs to another base or other options, or the file is not a log; nothing was
        moved.
    """

    def __init__(self, training: Training, base: Base | None = None) -> None:
        base = base or HostBase(training)
        self.log = LoggedEngine(training, base)
        super().__init__(training, base, self.log)

    def rollback(self, step: int) -> None:
        """Continue from theta of an older step."""
        self.check_between_steps("rollback")
        self.log.get().rollback(step)
        self.set_gammas()

    def saved(self) -> dict[str, Any]:
        """Return the tier's part of a saved state."""
        return self.log.saved()

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from a state that the log has checked; the caller then calls `set_gammas`."""
        self.check_between_steps("load_state_dict")
        self.log.load(saved, lambda: self._stream(self._order) if self._order else None)
