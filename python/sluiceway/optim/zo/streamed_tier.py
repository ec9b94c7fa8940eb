"""Tiers host and disk: weights are streamed to forward passes that meet at modules with weights.

During a step, parameters hold slots of the engine's ring. Outside of a step, theta is computed when
a parameter is read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.common.ownership import hold
from sluiceway.optim.zo.forward_order import ForwardOrder, watch_forward
from sluiceway.optim.zo.measurement import Copies, Measured, Measurement, Unit, plain_forwards
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.reader import Reader
from sluiceway.optim.zo.streamed_weights import StreamedWeights, Use, bytes_beside
from sluiceway.optim.zo.tier import Closure, States, Tier, Training
from sluiceway.optim.zo.weights import TrainedWeight

_TIERS = ("device", "host", "pinned")


class StreamedTier(Tier):
    """Streams weights to the forward passes.

    Parameters
    ----------
    training : Training
    weights : StreamedWeights
        Parameters are moved to their place, or nothing is changed if an error is raised.

    Raises
    ------
    InvalidArgument
        A frozen parameter is not on the device.
    """

    def __init__(self, training: Training, weights: StreamedWeights) -> None:
        self._training, self.weights = training, weights
        self._order: ForwardOrder | None = None
        self._evaluating = False
        self._raw: dict[str, Any] = {}
        parameters = [w.parameter for w in training.weights]
        try:
            _move_buffers(training)
            weights.take()
            with ExitStack() as undo:
                undo.callback(weights.remove_hooks)
                weights.add_hooks()
                self._reader = Reader(training.model, parameters, weights)
                undo.callback(self._reader.close)
                weights.set_gammas()
                undo.pop_all()
        except BaseException:
            weights.close()
            weights.put_back()
            raise
        hold(self)

    @property
    def committed_steps(self) -> int:
        """Number of steps that the engine has committed."""
        return self.weights.get().next_step

    def has(self, parameter: torch.Tensor) -> bool:
        """Tell whether a parameter is streamed here, so that no other optimizer may take it."""
        return self.weights.is_open and self.weights.has(parameter)

    def rest(self) -> None:
        """Restore parameters whose data an interrupted forward has left replaced."""
        self._reader.rest()

    # ---- The forward ----

    def _know(self, closures: Sequence[Closure]) -> None:
        self.weights.settle()  # If the end of the last pass was interrupted.
        if self._order is None:
            order = watch_forward(
                self._training.owner, self._reader, self._training.weights, closures[0]
            )
            self._stream(order)
        self._position = -1
        self.weights.begin_pass()

    def _stream(self, order: ForwardOrder) -> None:
        """Tell the engine what to stream: one use of a weight for each call that reads it."""
        engine = self.weights.get()
        uses, self._uses_of_call, self._calls_of_unit = [], [], {}
        for call, unit in enumerate(order.calls):
            first, weights = len(uses), order.weights[unit]
            uses += [self.weights.use_of(w, call) for w in weights]
            self._uses_of_call.append([(first + i, w.parameter) for i, w in enumerate(weights)])
            self._calls_of_unit.setdefault(unit, []).append(call)
        if uses:
            engine.stream(uses)
        self.measured = self._measured(order)
        self._order = order

    def _stream_again(self) -> None:
        """Tell an engine that was opened again what to stream."""
        if self._order is not None:
            self._stream(self._order)

    def _measured(self, order: ForwardOrder) -> Measured:
        names = {module: name for name, module in self._training.model.named_modules()}
        units = [Unit(f"module {names[m] or type(m).__name__}", m) for m in order.modules]
        parameters = [w.parameter for w in self._training.weights]
        resting = self.weights.absent()
        return Measured(self._training.owner, self._training.model, units, parameters, resting)

    # ---- Weights of a measurement ----

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Return slots of the ring, or copies of weights that are held around other units."""
        if unit in self._order.held:
            return self._perturbed(self._order.weights[unit], direction)
        if direction == 0:  # The first direction of the unit.
            calls = self._calls_of_unit[unit]
            later = bisect_right(calls, self._position)
            self._position = calls[later % len(calls)]
        uses: list[Use] = self._uses_of_call[self._position]
        sides = (False,) if self._evaluating else (False, True)
        return self.weights.acquire(unit, uses, direction, sides)

    def release(self, unit: int, direction: int) -> None:
        """Give the slots back to the ring."""
        self.weights.release(unit, direction)

    def throughout(self, direction: int) -> list[Copies]:
        """Copy the weights that the closure reads outside of all modules."""
        return self._perturbed(self._order.throughout, direction)

    def _perturbed(self, weights: list[TrainedWeight], direction: int) -> list[Copies]:
        if self._evaluating:
            return [Copies(w.parameter, (self.weights.theta(w.parameter),)) for w in weights]
        drawn = self._training.measured_directions[direction]
        return [Copies(w.parameter, self.weights.neighbours(w, drawn)) for w in weights]

    # ---- A pass ----

    def begin(self, closures: Sequence[Closure]) -> None:
        """Watch the forward unless it is known, and begin a step."""
        self.weights.begin_step()
        self._know(closures)
        self.weights.get().begin_step(self._training.measured_directions)
        self._evaluating = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Let only units bring weights in the block, and not the reader."""
        self.weights.in_step = True
        try:
            with self._reader.off():
                yield
        finally:
            self.weights.in_step = False

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Let the engine make the step, which computes the updates itself."""
        rates = [(float(g["lr"]), float(g["weight_decay"])) for g in self._training.param_groups]
        try:
            self.weights.commit(gradients, rates, non_finite)
        finally:
            self._end()

    def abandon(self) -> None:
        """End the pass."""
        if self.weights.is_open:
            self._end()

    def evaluate(self, closures: Sequence[Closure]) -> list[Any]:
        """Evaluate all closures in one pass over the weights."""
        self._know(closures)
        self.weights.get().begin_evaluation()
        self._evaluating = True
        try:
            measurement = Measurement(self.measured, self, plain_forwards(len(closures)))
            with Undisturbed() as quiet, self.measuring():
                return measurement.run(closures, quiet)
        finally:
            self._end()

    def _end(self) -> None:
        self.weights.settle()
        if self.weights.get().streams:
            self._raw = self.weights.get().take_stats()

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's state, if it has a state."""
        return self.weights.state_shapes(p)

    def before_state(self) -> None:
        """Bring masters, which the state holds itself, to the last step."""
        self.weights.before_state()

    def saved(self) -> dict[str, Any]:
        """Return the log, if there is one."""
        return self.weights.saved()

    def check_saved(
        self, frame: dict[str, Any], states: States, changed: list[TrainedWeight]
    ) -> None:
        """Check that a state belongs to these weights."""
        self.weights.check_saved(frame, states, changed)

    def load(self, frame: dict[str, Any], states: States) -> None:
        """Continue from a checked state."""
        self.weights.load(frame, states, self._stream_again)

    def groups_loaded(self) -> None:
        """Write gamma into the groups: it counts from the base, which may be new."""
        self.weights.set_gammas()

    # ---- Numbers, and the end ----

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory."""
        return self.weights.theta_on_host(p) if self.weights.has(p) else p.detach().cpu()

    def stats(self) -> dict[str, Any]:
        """Bytes that crossed links or were read in the last pass, and the device's waiting time."""
        raw = self._raw
        if not raw:
            return {}
        crossed = {"d2h": raw["d2h_bytes"], "h2d": raw["h2d_bytes"]}
        disk = {"disk_read": raw["disk_read_bytes"], "disk_written": 0}
        return {
            "bytes": {**crossed, **disk, **self.weights.consolidated()},
            "stall_seconds": raw["stall_seconds"],
            "peak_bytes": self._peaks(raw["peak_bytes"]),
        }

    def _peaks(self, of_engine: dict[str, int]) -> dict[str, int]:
        """Peak bytes by tier: of the engine, of torch on the device, and of the weights' place.

        The engine reserves the memory beside the weights, which torch counts too. On the host
        device torch also counts the weights.
        """
        device, kept = self._training.device, self.weights.memory()
        peaks = {tier: of_engine[tier] + kept.get(tier, 0) for tier in _TIERS}
        counted = 0 if device.asynchronous else self.weights.tensor_bytes
        torch_has = device.peak_bytes() - counted
        peaks["device"] += max(0, torch_has - bytes_beside(self._training))
        return peaks

    def close(self, theta: bool = True) -> None:
        """Leave theta in the parameters, and write the trace.

        Raises
        ------
        InvalidArgument
            A pass is under way; it continues.
        Error
            A lane failed. If steps are written into the weights, these have no common step, and
            the engine is closed.
        """
        weights = self.weights
        if not weights.is_open:
            return
        weights.check_between_steps("close")
        try:
            if weights.is_written:  # Also without theta, they end up at one common step.
                weights.settle()
                weights.flush()
            self._give_back(theta)
        except Error:
            if weights.is_written:
                self._take_away()
                weights.close()
            raise

    def _take_away(self) -> None:
        self._reader.close()
        self.weights.remove_hooks()

    def _give_back(self, theta: bool) -> None:
        self._take_away()
        if theta:
            self.weights.give_theta()
        trace = self._training.options.trace
        try:
            if trace is not None and self.weights.get().streams:
                self.weights.get().trace.write_json(os.fspath(trace))
        finally:
            self.weights.close()


def _move_buffers(training: Training) -> None:
    """Move the model's buffers to a CUDA device that weights are streamed to.

    Raises
    ------
    InvalidArgument
        A frozen parameter is not on the device; nothing was moved.
    """
    if not training.device.asynchronous:
        return
    device = training.device.name
    trained = {id(w.parameter) for w in training.weights}
    for name, p in training.model.named_parameters():
        if id(p) not in trained and str(p.device) != device:
            raise InvalidArgument(
                f"{training.owner}: {name} is frozen and on {p.device}, expected {device}, since "
                "only trained weights are streamed; move it there"
            )
    for module in training.model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
