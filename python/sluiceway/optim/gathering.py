"""What becomes of backwards until a step: the half of GradientSink that optimizers share."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.hooks import ModelHooks
from sluiceway.optim.open_model.compilation import CompilationWatch
from sluiceway.optim.open_model.in_flight import WeightsInFlight
from sluiceway.optim.sentinel import Sentinel
from sluiceway.optim.step_clock import StepClock


@dataclass
class Standing:
    """Where a step stands: one object, so that what copies an optimizer's attributes knows too."""

    gathered: bool = False  # Gradients are accumulated, and the sentinel stands for them.
    scaled_loss: bool = False  # Gradients are scaled by somebody else than `loss_scale`.
    overflowed: bool = False
    skipped_steps: int = 0


class GatheringOptimizer(torch.optim.Optimizer):
    """Gathers gradients in an engine, and lets the sentinel stand for them where torch looks.

    Whoever zeroes or scales the sentinel zeroes or scales what was gathered.
    """

    engine: Any
    sentinel: Sentinel
    _hooks: ModelHooks
    _clock: StepClock
    _owner: str
    _standing: Standing
    _in_flight: WeightsInFlight
    _compilation: CompilationWatch

    def before_forward(self, training: bool) -> None:
        """A sentinel that somebody removed means zero_grad()."""
        if not self._in_flight.forked():
            self._drop_if_zeroed()

    def wait(self, weight: int) -> None:
        """Come back when the last update of a weight is applied."""
        self._in_flight.wait(weight)

    def _compilation_began(self) -> None:
        """Graphs read weights without waiting, and do not say which they use twice."""
        for index in range(len(self.weights)):
            self.used_again(index)
        self._in_flight.synchronize()

    def _take_off(self) -> None:
        """A step is enqueued: whoever reads a weight waits; a compiled graph finds them applied."""
        if self._compilation.check():
            self._in_flight.synchronize()
            self.before_forward(True)  # The hook of the model may be inside of a graph.
        else:
            self._in_flight.take_off()

    def used_again(self, weight: int) -> None:
        """Several gradients of a weight add up like those of several backwards."""

    def expect_scaled_loss(self) -> None:
        """Gradients are scaled, by how much only `step()` learns."""
        self._standing.scaled_loss = True

    def begin_backward(self) -> None:
        """First gradient of a backward: no sentinel stands for the gradients until its end."""
        if self._in_flight.forked():
            raise InvalidArgument(
                f"{self._owner}: a backward in a forked child, expected one in the process that "
                "made the optimizer, which has its lanes; make an optimizer in the child"
            )
        self._drop_if_zeroed()
        if self._standing.gathered:
            self.sentinel.check_unscaled()
        self.sentinel.remove()
        self._standing.gathered = False

    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """What becomes of a gradient; a subclass says it."""
        raise NotImplementedError

    def end_backward(self, forward_began_us: float, backward_began_us: float) -> None:
        """All gradients of a backward are in: place the sentinel that stands for them."""
        norm, _ = self.engine.end_backward()
        self.sentinel.place(norm)
        self._standing.gathered = True
        self._clock.backward(forward_began_us, backward_began_us)

    def abandon_backward(self) -> None:
        """What the step has gathered is not whole, and goes."""
        self._hooks.forget_backward()
        self.sentinel.remove()
        self._drop()

    def _drop(self) -> None:
        self.engine.drop()
        self._standing.gathered = False

    def _drop_if_zeroed(self) -> None:
        # model.zero_grad() leaves no other trace; so does a step that GradScaler left out.
        if self._standing.gathered and self.sentinel.vanished():
            self._drop()

    def _refuse_scaler(self) -> None:
        """Raise where a GradScaler comes too late."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by torch's GradScaler before it calls `step()`: that is how it is noticed."""
        asking = sys._getframe(1).f_locals.get("self")
        if isinstance(asking, torch.amp.GradScaler):
            self._refuse_scaler()
            self.expect_scaled_loss()
        return False
