"""What becomes of backwards until a step: the half of GradientSink that optimizers share."""

from __future__ import annotations

import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from sluiceway import _core
from sluiceway.config.shared_options import SharedOptions
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.clip.carriers import Carriers
from sluiceway.optim.clip.clipping import Clipping, check_clipping, split_parameters
from sluiceway.optim.engine_weights import EngineWeights
from sluiceway.optim.guards.dropped_gradients import DroppedGradients
from sluiceway.optim.guards.foreign_gradients import ForeignGradients
from sluiceway.optim.guards.states import OptimizerWithStates
from sluiceway.optim.guards.weight_watch import WeightWatch
from sluiceway.optim.hooks import ModelHooks
from sluiceway.optim.hyperparameters import numbered_parameters
from sluiceway.optim.open_model.compilation import CompilationWatch
from sluiceway.optim.open_model.in_flight import WeightsInFlight
from sluiceway.optim.step_clock import StepClock


@dataclass
class StepProgress:
    """Where a step stands: one object, so that what copies an optimizer's attributes knows too."""

    gathered: bool = False  # Gradients are accumulated, and the sentinel stands for them.
    given: set[int] = field(default_factory=set)  # Weights that have a gradient in the engine.
    spent: bool = False  # A step has used gradients that nobody is known to have zeroed since.
    lost: str = ""  # The weight whose gradient was taken from autograd and came to nothing.
    scaled_loss: bool = False  # Gradients are scaled by somebody else than `loss_scale`.
    overflowed: bool = False
    skipped_steps: int = 0
    half_loaded: bool = False  # Putting a state back was interrupted.


class GatheringOptimizer(OptimizerWithStates, ABC):
    """Gathers gradients in an engine, and lets the sentinel stand for them where torch looks.

    Whoever zeroes or scales the sentinel zeroes or scales what was gathered.
    """

    engine: Any
    of_engine: EngineWeights
    device: DeviceOps
    options: SharedOptions
    loss_scale: _core.LossScale
    sentinel: Carriers
    _hooks: ModelHooks
    _clock: StepClock
    _standing: StepProgress
    _in_flight: WeightsInFlight
    _compilation: CompilationWatch
    _clipping: Clipping
    _watch: WeightWatch
    _dropped: DroppedGradients
    _foreign: ForeignGradients

    def before_forward(self, training: bool) -> None:
        """A sentinel that somebody removed means zero_grad(), before a forward that trains.

        Before another one it may have been set aside, and come back.
        """
        if training and not self._in_flight.forked():
            self._check_surroundings()
            with self._hooks.backward.turn():
                self._foreign.check_forward()
                self._drop_if_removed()

    def wait(self, weight: int) -> None:
        """Come back when the last update of a weight is applied."""
        self._in_flight.wait(weight)

    def _compilation_began(self) -> None:
        """Graphs read weights without waiting, and do not say which they use twice."""
        for index in range(len(self.weights)):
            self.used_again(index)
        self._in_flight.synchronize()

    def used_again(self, weight: int) -> None:
        """Several gradients of a weight add up like those of several backwards."""

    def expect_scaled_loss(self) -> None:
        """Gradients are scaled, by how much only `step()` learns."""
        self._standing.scaled_loss = True

    def begin_backward(self) -> None:
        """First gradient of a backward: no sentinel stands for the gradients until its end."""
        self._check_process()
        self._check_surroundings()
        self._refuse_lost()
        with self._hooks.backward.turn():
            self._still_spent()  # Perhaps zeroed later, where another model's loss comes through.
            taken = self._hooks.taken
            if self._standing.gathered:
                self.sentinel.check_whole()
            if not self._standing.gathered:
                if self.sentinel.placed():
                    self._note_zeros()
                else:
                    taken.clear()  # A calibration's, or those of a backward that was given up.
                self.sentinel.forget()
            elif self.sentinel.removed() or self.sentinel.zeroed():
                self._dropped.all_gone(taken, zeroed=not self.sentinel.removed())
                self._drop()
            else:
                self._clipping.check_unscaled()
            self._standing.gathered = False
            self.sentinel.remove()
            self._foreign.check_backward()
            # A hook runs with gradients enabled where backward(create_graph=True) was called.
            self._clipping.of_graph = torch.is_grad_enabled()

    def _check_process(self) -> None:
        if self._in_flight.forked():
            raise InvalidArgument(
                f"{self._owner}: process {os.getpid()} is a forked child and has no lanes, "
                "expected the process that made the optimizer; make another one in the child"
            )

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse what a closed optimizer cannot do; a subclass says it."""

    @abstractmethod
    def _check_surroundings(self) -> None:
        """Refuse what became of the model or the process since; a subclass says it."""

    @abstractmethod
    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """What becomes of a gradient; a subclass says it."""

    def mark(self) -> Any:
        """Of this thread's stream."""
        return self.device.mark()

    def end_backward(self, forward_began: Any, backward_began: Any) -> None:
        """All gradients of a backward are in: place the sentinel that stands for them."""
        norm = self._end_gathering()
        with self._hooks.backward.turn():
            self.sentinel.choose(self._hooks.taken)
            self._hooks.guard(self.sentinel.numbers)
            self._clipping.begin(norm, self._norms)
            self._dropped.note()
            self._standing.gathered = True
        self._clock.backward(forward_began, backward_began)

    def _norms(self) -> list[float]:
        return [math.sqrt(squares) for squares, _ in self._sizes()]

    @abstractmethod
    def _end_gathering(self) -> Callable[[], float]:
        """The last gradient of a backward is in; what tells the norm of all, and may wait for it.

        It does not hold the optimizer.
        """

    def _sizes(self) -> list[tuple[float, float]]:
        """Sum of squares and largest element of what was gathered of each weight."""
        return self.of_engine.joined(self.engine.gradient_sizes())

    def lose_gradient(self, weight: int) -> None:
        """A gradient was taken from autograd and came to nothing, as the taking raised."""
        self._standing.lost = self.weights[weight].name

    def _refuse_lost(self) -> None:
        if self._standing.lost:
            raise InvalidArgument(
                f"{self._owner}: a backward raised while the gradient of {self._standing.lost} was "
                "taken, which is lost, expected whole gradients; call opt.zero_grad() and repeat "
                "the backwards of this step"
            )

    def _still_spent(self) -> bool:
        """Whether gradients that a step has used are there yet, as nobody has zeroed any."""
        self._standing.spent = self._standing.spent and self.sentinel.remains()
        return self._standing.spent

    def _note_zeros(self) -> None:
        """Whether torch has zeros now, or nothing, where a step has used gradients."""
        if self.sentinel.placed() and not self._standing.gathered:
            self._dropped.since_step(self._hooks.taken, self.sentinel)

    def _refuse_spent(self) -> None:
        in_backward = self._standing.spent and self._hooks.backward.is_open
        if in_backward or self._still_spent():
            raise InvalidArgument(
                f"{self._owner}.step: gradients of the last step() were not zeroed, expected "
                "zero_grad() before the next one, as compressed gradients are used by one step and "
                "cannot be added to; call opt.zero_grad() after each step()"
            )

    def abandon_backward(self) -> None:
        """What the step has gathered goes; its backward, if it is under way, gathers anew."""
        self._hooks.backward.forget()
        self._drop()

    def _zero_gathered(self, set_to_none: bool) -> None:
        standing = self._standing
        if standing.gathered and not standing.lost and not set_to_none:
            return  # The sentinel is zeroed in place, which tells of it.
        if standing.gathered or standing.lost or self.engine.has_gradient():
            self.abandon_backward()
        if standing.spent:
            self.sentinel.forget()
            standing.spent = False
        self._dropped.all_gone(self._hooks.taken, zeroed=not set_to_none)

    def _drop(self) -> None:
        self.sentinel.forget()
        self.engine.drop()
        self._standing.gathered, self._standing.given, self._standing.lost = False, set(), ""

    def _drop_if_removed(self) -> None:
        # model.zero_grad() leaves no other trace; so does a step that GradScaler left out.
        if not self._standing.gathered:
            return
        self._dropped.check_part(self.sentinel)
        if self.sentinel.removed():
            self._dropped.all_gone(self._hooks.taken, zeroed=False)
            self._drop()

    @torch.no_grad()
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        parameters: Iterable[torch.Tensor] | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `torch.nn.utils.clip_grad_norm_`, of gradients that have left `.grad` too.

        Called between the last backward of a step and `step()`, as often as there are groups to
        clip; each call sees what the ones before it did. With `GradScaler`, after `unscale_()`; a
        scale of `scale_loss()` is taken out of the norm. The norm of a compressed gradient is that
        of its core, with the identity codec that of the gradient; residuals have a clip of their
        own. Where a gradient is not finite nothing is scaled: the step will be skipped.

        Parameters
        ----------
        max_norm : float
        norm_type : float
            2 or inf.
        parameters : iterable of torch.Tensor, optional
            Of the model; default is all of the optimizer's. Others' have ordinary gradients.

        Returns
        -------
        torch.Tensor
            Their common norm before clipping.

        Raises
        ------
        InvalidArgument
            The optimizer was made with a `max_norm` of its own.
        Unavailable
            A norm of another order was asked for.
        """
        self._check_open()
        order = check_clipping(self._owner, max_norm, norm_type, self.options.max_norm)
        if parameters is None:
            parameters = numbered_parameters(self.param_groups)
        compressed = [weight.parameter for weight in self.weights]
        chosen, gradients = split_parameters(self._owner, parameters, compressed)
        self._drop_if_removed()
        sizes = self._sizes() if self._standing.gathered else []
        scale = 1.0 / self.loss_scale.value
        return torch.tensor(
            self._clipping.clip(sizes, chosen, gradients, float(max_norm), order, scale)
        )

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
