"""The optimizers whose gradients are taken by hooks during backward, and what they share."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.shared_options import SharedOptions
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import device_ops
from sluiceway.model.targets import Selection
from sluiceway.model.uncompressed import large_groups
from sluiceway.optim.clip.carriers import Carriers
from sluiceway.optim.clip.clipping import Clipping
from sluiceway.optim.engine_weights import EngineWeights
from sluiceway.optim.gathering import StepProgress
from sluiceway.optim.guards.chosen import check_model, choose_parameters
from sluiceway.optim.guards.dropped_gradients import DroppedGradients
from sluiceway.optim.guards.foreign_gradients import ForeignGradients
from sluiceway.optim.guards.mixed_modules import MixedModules
from sluiceway.optim.guards.plain_state import plain_state
from sluiceway.optim.guards.ranks import refuse_split_model, refuse_split_since
from sluiceway.optim.guards.weight_watch import WeightWatch
from sluiceway.optim.hooks import ModelHooks
from sluiceway.optim.hyperparameters import check_hyperparameters, numbered_parameters
from sluiceway.optim.open_model.compilation import CompilationWatch
from sluiceway.optim.open_model.in_flight import WeightsInFlight
from sluiceway.optim.open_model.ownership import ModelOwnership
from sluiceway.optim.ordinary import OrdinaryParameters
from sluiceway.optim.state import (
    STATE_KEY,
    check_frame,
    frame_of,
    parameter_state,
    restore_frame,
)
from sluiceway.optim.step_clock import StepClock
from sluiceway.optim.stepping import WholeStepOptimizer
from sluiceway.optim.tier_limits import parameter_bytes


class HookedOptimizer(WholeStepOptimizer):
    """An optimizer that gives the gradients of large weights to an engine, and trains the rest.

    A subclass makes the engine, says what one gradient becomes, and what its state holds; hooks,
    clipping, skipping, closing, forking and the frame of the state are here.

    Parameters
    ----------
    model : torch.nn.Module
    adam : dict
        lr, betas, eps and weight_decay.
    options : SharedOptions
    param_groups : iterable of dict, optional
    """

    _ownership: ModelOwnership | None = None  # Until the constructor has worked.

    def __init__(
        self,
        model: nn.Module,
        adam: dict[str, Any],
        options: SharedOptions,
        param_groups: Iterable[dict[str, Any]] | None,
    ) -> None:
        self._owner = type(self).__name__
        check_hyperparameters(self._owner, adam)
        self.options = options
        check_model(self._owner, model)
        refuse_split_model(self._owner, model)
        selection, groups = choose_parameters(
            self._owner,
            model,
            param_groups,
            lambda wanted: self._select(model, wanted, param_groups is not None),
        )
        for group in groups:  # An engine may make files, which stay.
            check_hyperparameters(self._owner, {**adam, **group})
        self.frozen, self.weights = selection.frozen, selection.compressed
        self.device = device_ops(self._owner, options.device, selection.trained)
        self.of_engine = EngineWeights(self.weights)
        self.uncompressed = large_groups(self.weights, selection.ordinary, selection.why_ordinary)
        self._ordinary = OrdinaryParameters(
            selection.ordinary, options.seed, self._owner, self.device
        )
        self._watch = WeightWatch(self._owner, model, selection)
        self.loss_scale = _loss_scale(options.loss_scale)
        self.device.count_allocations()
        self.engine = self._make_engine(model)
        self._fixed_groups = False
        super().__init__(groups, adam)
        self._fixed_groups = True
        self._clock = StepClock(self.engine, self.device, parameter_bytes(model))
        self.engine.enable_trace(options.trace is not None, os.fspath(options.trace or ""))
        self._standing = StepProgress()
        self._stepping: list[torch.Tensor] = []
        self._in_flight = WeightsInFlight(
            self.engine, self.of_engine, self.device, self._owner, self._landed()
        )
        taken = [p for _, p in selection.trained + self.frozen]
        self._ownership = ModelOwnership(
            self.engine, self._take_model(model), self._in_flight, self._lent(), taken
        )

    def _take_model(self, model: nn.Module) -> ExitStack:
        """Change the model; what fails here, or what is returned, leaves it as it was found."""
        with ExitStack() as undo:
            undo.callback(_set_trainable, self.frozen, True)
            _set_trainable(self.frozen, False)
            asynchronous = self.device.asynchronous
            self.sentinel = Carriers(self._owner, self.weights, asynchronous)
            undo.callback(self.sentinel.release)
            self._hooks = ModelHooks(self, model, self.weights)
            undo.callback(self._hooks.remove)
            compressed, ordinary = (
                [(w.name, w.parameter) for w in self.weights],
                self._ordinary.named,
            )
            modules = MixedModules(model, compressed, ordinary)
            self._clipping = Clipping(
                self._owner, self.sentinel, len(self.weights), ordinary, modules, asynchronous
            )
            self._dropped = DroppedGradients(self._owner, compressed, ordinary, modules)
            self._foreign = ForeignGradients(self._owner, self.weights, self.sentinel)
            self._compilation = CompilationWatch(self._compilation_began)
            undo.callback(self._compilation.stop)
            return undo.pop_all()

    # ---- What a subclass says ----

    @abstractmethod
    def _select(self, model: nn.Module, wanted: Collection[int], grouped: bool) -> Selection:
        """Sort the parameters that have an id() in `wanted`, which stood in groups if `grouped`."""

    @abstractmethod
    def _make_engine(self, model: nn.Module) -> Any:
        """Build the engine of `self.of_engine`; the model is not changed yet."""

    def _landed(self) -> Callable[[int], None]:
        """Who is told the number of a weight whose update was waited for; not the optimizer."""
        return lambda _weight: None

    def _lent(self) -> Callable[[], list[torch.Tensor]]:
        """What lanes of enqueued steps read and write, when asked; not by the optimizer."""
        stepping = self._stepping
        return lambda: list(stepping)

    def _weight_states(self) -> dict[int, dict[str, Any]]:
        """States of the engine's weights, by the numbers of their parameters."""
        return {
            number: parameter_state(self, index)
            for number, index in self.numbered_weights().items()
        }

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What a state holds of the engine, beside its weights; `_check_own_state` knows it."""

    @abstractmethod
    def _check_own_state(self, state_dict: dict[str, Any]) -> None:
        """Refuse what this engine cannot take over; changes nothing."""

    @abstractmethod
    def _restore_own_state(self, state_dict: dict[str, Any]) -> None:
        """Put back the states of the engine's weights, and `_own_state`; all of it was checked."""

    # ---- torch.optim.Optimizer ----

    def _check_surroundings(self) -> None:
        self._check_loaded()
        self._watch.check()
        refuse_split_since(self._owner, self.weights)

    def _check_loaded(self) -> None:
        if self._standing.half_loaded:
            raise InvalidArgument(
                f"{self._owner}: its last load_state_dict() was interrupted and the state is of "
                "two runs, expected one that came back; load again"
            )

    def _hypers(self, *more: float) -> list[tuple[float, ...]]:
        """lr, betas, eps, weight_decay and `more` of each of the engine's weights."""
        of_parameter = {}
        for group in self.param_groups:
            hyper = (group["lr"], *group["betas"], group["eps"], group["weight_decay"], *more)
            of_parameter.update((id(p), tuple(map(float, hyper))) for p in group["params"])
        return self.of_engine.spread(of_parameter[id(w.parameter)] for w in self.weights)

    @torch.compiler.disable
    def state_dict(self) -> dict[str, Any]:
        """State of every parameter and of the engine; loads under `weights_only=True`."""
        self._check_open()
        self._check_loaded()
        self.synchronize()
        state_dict = super().state_dict()
        state_dict["state"] = copy.deepcopy(state_dict["state"])  # As those of the weights below.
        state_dict["state"] |= self._weight_states()
        state_dict[STATE_KEY] = {**frame_of(self), **self._own_state()}
        return state_dict

    @torch.compiler.disable
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`; training goes on from it bit for bit.

        Its tensors may be on any device, as Accelerate leaves them, in any kind of dictionary.

        Raises
        ------
        Error
            It is broken, or of another run, or gradients are gathered that it would not go with;
            nothing was changed.
        KeyboardInterrupt
            Ctrl-C; if something was put back by then, nothing but another load is taken.
        """
        self._check_open()
        state_dict = plain_state(state_dict, to_host=True)
        check_frame(self, state_dict)
        self._check_own_state(state_dict)
        self._refuse_gathered()
        self.synchronize()
        self._standing.half_loaded = True
        # torch's version would cast f32 moments to the dtype of a 16-bit parameter.
        super().load_state_dict({**state_dict, "state": {}})
        restore_frame(self, state_dict)
        self._restore_own_state(state_dict)
        self._standing.half_loaded = False

    def _refuse_gathered(self) -> None:
        self._drop_if_removed()
        if self.engine.has_gradient():
            raise InvalidArgument(
                f"{self._owner}.load_state_dict: gradients of a backward are gathered in terms of "
                "the state that there is, expected none; call step() or zero_grad() before it"
            )

    def numbered_weights(self) -> dict[int, int]:
        """Map the number of a parameter in a state_dict to that of its compressed weight."""
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

    @torch.compiler.disable
    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""
        self._check_not_closed()
        self._in_flight.synchronize()

    @property
    def overflowed(self) -> bool:
        """Whether the last step was skipped."""
        return self._standing.overflowed

    @property
    def skipped_steps(self) -> int:
        """How many steps were skipped so far."""
        return self._standing.skipped_steps

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step: seconds, bytes per link, peak bytes per tier, norm."""
        return {
            **self._clock.stats(),
            "skipped": self.overflowed,
            "skipped_steps": self.skipped_steps,
            "loss_scale": self.loss_scale.value,
        }

    def describe(self) -> list[dict[str, Any]]:
        """What each weight of the engine is: of a compressed one codec, core shape and bytes."""
        return [self.engine.describe(index) for index in range(len(self.of_engine))]

    def close(self) -> None:
        """Apply what is enqueued, write the trace, take the hooks away; idempotent.

        Gradients of compressed weights that were gathered for a step go: an optimizer that is made
        afterwards starts with the next backward.

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
        if self._ownership is None or not self._ownership.end():
            return
        if self.options.trace is not None:
            self.engine.write_trace(os.fspath(self.options.trace))

    def _is_open(self) -> bool:
        return self._ownership is not None and not self._ownership.ended

    def _check_not_closed(self) -> None:
        if not self._is_open():
            raise InvalidArgument(f"{self._owner}: it is closed, expected an open optimizer")

    def _check_open(self) -> None:
        self._check_not_closed()
        self._check_process()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _set_trainable(parameters: list[tuple[str, nn.Parameter]], trainable: bool) -> None:
    for _, parameter in parameters:
        parameter.requires_grad_(trainable)


def _loss_scale(value: str | float | None) -> _core.LossScale:
    if value is None:
        return _core.LossScale("off")
    if value == "dynamic":
        return _core.LossScale("dynamic")
    return _core.LossScale("static", value)
