"""The optimizers whose gradients are taken by hooks during backward, and what they share."""

from __future__ import annotations

import atexit
import copy
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.shared_options import SharedOptions
from sluiceway.errors import Error, InvalidArgument, Unavailable
from sluiceway.model.targets import select_weights
from sluiceway.optim.gathering import GatheringOptimizer
from sluiceway.optim.hooks import ModelHooks
from sluiceway.optim.hyperparameters import (
    check_hyperparameters,
    numbered_parameters,
    trainable_groups,
)
from sluiceway.optim.ordinary import OrdinaryParameters
from sluiceway.optim.sentinel import Sentinel
from sluiceway.optim.state import STATE_KEY, check_frame, frame_of, restore_frame
from sluiceway.optim.step_clock import StepClock
from sluiceway.optim.tier_limits import parameter_bytes


class HookedOptimizer(GatheringOptimizer):
    """An optimizer that gives the gradients of large weights to an engine, and trains the rest.

    A subclass makes the engine, says what one gradient becomes, and what its state holds; hooks,
    clipping, skipping, closing, forking and the frame of the state are here.

    Parameters
    ----------
    model : torch.nn.Module
    adam : dict
        lr, betas, eps and weight_decay.
    options : SharedOptions
        With `target` and `embeddings` beside what is shared.
    param_groups : iterable of dict, optional
    """

    _closed = True  # Until the constructor has worked.

    def __init__(
        self,
        model: nn.Module,
        adam: dict[str, Any],
        options: SharedOptions,
        param_groups: Iterable[dict[str, Any]] | None,
    ) -> None:
        self._owner = type(self).__name__
        check_hyperparameters(self._owner, adam)
        _check_device(self._owner, options.device)
        self.options = options
        selection = select_weights(model, options.target, options.embeddings)
        self.frozen = selection.frozen
        frozen = {id(p) for _, p in selection.frozen}
        groups = trainable_groups(self._owner, model, param_groups, frozen)
        trained = {id(p) for group in groups for p in group["params"]}
        self.weights = [w for w in selection.compressed if id(w.parameter) in trained]
        ordinary = [(name, p) for name, p in selection.ordinary if id(p) in trained]
        self._ordinary = OrdinaryParameters(ordinary, options.seed, self._owner)
        self.loss_scale = _loss_scale(options.loss_scale)
        _core.count_host_allocations()
        self.engine = self._make_engine(model)
        self._fixed_groups = False
        super().__init__(groups, adam)
        self._fixed_groups = True
        self._clock = StepClock(self.engine, parameter_bytes(model))
        self.engine.enable_trace(options.trace is not None)
        self.overflowed = False
        self.skipped_steps = 0
        self._opened_in = os.getpid()
        self._stepping: list[torch.Tensor] = []
        self._take_model(model)
        self._closed = False
        _open.add(self)

    def _take_model(self, model: nn.Module) -> None:
        """Change the model; what fails here, or `close()`, leaves it as it was found."""
        with ExitStack() as undo:
            undo.callback(_set_trainable, self.frozen, True)
            _set_trainable(self.frozen, False)
            smallest = min((w.parameter for w in self.weights), key=torch.numel)
            self.sentinel = Sentinel(smallest, self._owner)
            undo.callback(self.sentinel.release)
            self._hooks = ModelHooks(self, model, self.weights)
            undo.callback(self._hooks.remove)
            self._on_model = undo.pop_all()

    # ---- What a subclass says ----

    def _make_engine(self, model: nn.Module) -> Any:
        """Build the engine of `self.weights`; the model is not changed yet."""
        raise NotImplementedError

    def _enqueue(
        self, weights: list[torch.Tensor], factor: float, unscale: float, squares: float
    ) -> tuple[bool, float, float]:
        """Enqueue one step of the engine; return whether it was skipped, the norm, the clipping.

        Parameters
        ----------
        weights : list of torch.Tensor
        factor : float
            On what was gathered: unscaling, and what others did to the sentinel.
        unscale : float
            Unscaling alone.
        squares : float
            Sum of squares of all unscaled gradients that are not the engine's.
        """
        raise NotImplementedError

    def _own_state(self) -> dict[str, Any]:
        """What a state holds of the engine, beside its weights; `_check_own_state` knows it."""
        raise NotImplementedError

    def _check_own_state(self, state_dict: dict[str, Any]) -> None:
        """Refuse what this engine cannot take over; changes nothing."""
        raise NotImplementedError

    def _restore_own_state(self, state_dict: dict[str, Any]) -> None:
        """Put back the states of the engine's weights, and `_own_state`; all of it was checked."""
        raise NotImplementedError

    # ---- torch.optim.Optimizer ----

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Enqueue one update of every parameter that has a gradient.

        Returns
        -------
        torch.Tensor or None
            What `closure` returned.

        Raises
        ------
        InvalidArgument
            A parameter changed shape or dtype, or gradients were clipped by value.
        Error
            A lane of an earlier step failed; lane and weight are named. Final.
        """
        self._check_open()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._drop_if_zeroed()
        self._refuse_foreign_gradients()
        scale = 1.0 / self.loss_scale.value
        factor = self.sentinel.factor() * scale if self._gathered else scale
        squares = self._ordinary.sum_squares() * scale * scale
        # Kept until the next step: lanes write to this storage, even if somebody replaces `.data`.
        self._stepping = weights = [w.parameter.detach() for w in self.weights]
        skipped, norm, clip = self._enqueue(weights, factor, scale, squares)
        if not skipped:
            self._ordinary.step(self.param_groups, self.state, clip * scale)
            for weight in weights:
                torch.autograd.graph.increment_version(weight)
        self.overflowed = skipped
        self.skipped_steps += skipped
        self.loss_scale.update(skipped)
        self.sentinel.remove()
        self._gathered = False
        self._clock.step(norm)
        return loss

    def _refuse_foreign_gradients(self) -> None:
        # Gradients are taken in backward: one that was assigned would never be used.
        for weight in self.weights:
            if weight.parameter.grad is not None and not self.sentinel.stands_at(weight.parameter):
                raise InvalidArgument(
                    f"{self._owner}.step: {weight.name} has a .grad that no backward() gave it, "
                    "expected None; call backward() instead of assigning .grad"
                )

    def _hypers(self, *more: float) -> list[tuple[float, ...]]:
        """lr, betas, eps, weight_decay and `more` of each of the engine's weights."""
        of_parameter = {}
        for group in self.param_groups:
            hyper = (group["lr"], *group["betas"], group["eps"], group["weight_decay"], *more)
            of_parameter.update((id(p), tuple(map(float, hyper))) for p in group["params"])
        return [of_parameter[id(w.parameter)] for w in self.weights]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient, what was gathered of them too."""
        if not self._closed and (self._gathered or self.engine.has_gradient()):
            self.abandon_backward()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """State of every parameter and of the engine; loads under `weights_only=True`."""
        self._check_open()
        self.synchronize()
        state_dict = super().state_dict()
        state_dict["state"] = copy.deepcopy(state_dict["state"])  # As those of the weights below.
        for number, index in self.numbered_weights().items():
            state_dict["state"][number] = self.engine.weight_state(index)
        state_dict[STATE_KEY] = {**frame_of(self), **self._own_state()}
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`; training goes on from it bit for bit.

        Raises
        ------
        Error
            It is broken, or of another run; nothing was changed.
        """
        self._check_open()
        check_frame(self, state_dict)
        self._check_own_state(state_dict)
        self.synchronize()
        # torch's version would cast f32 moments to the dtype of a 16-bit parameter.
        super().load_state_dict({**state_dict, "state": {}})
        self.zero_grad()
        restore_frame(self, state_dict)
        self._restore_own_state(state_dict)

    def numbered_weights(self) -> dict[int, int]:
        """Map the number of a parameter in a state_dict to that of its weight in the engine."""
        index_of = {id(weight.parameter): i for i, weight in enumerate(self.weights)}
        numbered = enumerate(numbered_parameters(self.param_groups))
        return {number: index_of[id(p)] for number, p in numbered if id(p) in index_of}

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgument(
            f"{self._owner}: cannot be copied or pickled, as it holds threads and hooks of its "
            "model, expected state_dict(); load that into an optimizer made for the other model"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, while the optimizer is being made; refused afterwards."""
        if self._fixed_groups:
            raise InvalidArgument(
                f"{self._owner}.add_param_group: the engine is built, expected all groups in the "
                "constructor; pass param_groups="
            )
        super().add_param_group(param_group)
        check_hyperparameters(self._owner, self.param_groups[-1])

    # ---- Beyond torch's interface ----

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the loss scale that `step()` removes again."""
        return loss * self.loss_scale.value

    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""
        self._check_open()
        self.engine.synchronize()

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step: seconds, bytes per link, peak bytes per tier, norm."""
        return {
            **self._clock.stats(),
            "skipped": self.overflowed,
            "skipped_steps": self.skipped_steps,
            "loss_scale": self.loss_scale.value,
        }

    def describe(self) -> list[dict[str, Any]]:
        """Codec, core shape and bytes of each compressed weight."""
        return [self.engine.describe(index) for index in range(len(self.weights))]

    def close(self) -> None:
        """Apply what is enqueued, write the trace, take the hooks away; idempotent.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C; the optimizer is still open.
        Timeout
            A lane has not got anything done for five seconds, nor for longer than ever before;
            lane and weight are named, and their memory is never given back.
        Error
            A lane of an earlier step failed; lane and weight are named.
        """
        if self._closed or os.getpid() != self._opened_in:
            return
        try:
            self.engine.close(self._lent())
        except KeyboardInterrupt:
            raise  # Nothing is lost: it is open, and may be closed again.
        except BaseException:
            self._let_go()
            raise
        self._let_go()
        if self.options.trace is not None:
            self.engine.write_trace(os.fspath(self.options.trace))

    def _let_go(self) -> None:
        self._closed = True
        self._on_model.close()

    def _lent(self) -> list[torch.Tensor]:
        """What lanes of enqueued steps read and write."""
        return self._stepping

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(f"{self._owner}: it is closed, expected an open optimizer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """What is left of `close()` for one that nobody closed, while the weights are alive."""
        if not self._closed and os.getpid() == self._opened_in:
            self._let_go()
            self.engine.finish(self._lent())


_open: weakref.WeakSet[HookedOptimizer] = weakref.WeakSet()


@atexit.register  # Later, while modules are torn down, nobody could be told of a stuck lane.
def _finish_all() -> None:
    for optimizer in list(_open):
        try:
            optimizer._finish()
        except Error as error:
            print(f"sluiceway: {error}", file=sys.stderr)


def _check_device(owner: str, device: str) -> None:
    if device not in ("auto", "host"):
        raise Unavailable(
            f"{owner}: device {device!r} is not in this build, it has 'host'; move the model to "
            "the CPU"
        )


def _set_trainable(parameters: list[tuple[str, nn.Parameter]], trainable: bool) -> None:
    for _, parameter in parameters:
        parameter.requires_grad_(trainable)


def _loss_scale(value: str | float | None) -> _core.LossScale:
    if value is None:
        return _core.LossScale("off")
    if value == "dynamic":
        return _core.LossScale("dynamic")
    return _core.LossScale("static", value)
