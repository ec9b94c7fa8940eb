"""EngineOptimizer: a torch optimizer that gives the gradients of large weights to an engine."""

from __future__ import annotations

import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn

from sluiceway import _core
from sluiceway.base.columns import WeightTable
from sluiceway.config.shared_options import SharedOptions
from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.machine.device_ops import device_ops
from sluiceway.model.blocks import find_blocks
from sluiceway.model.targets import CompressedWeight, Selection
from sluiceway.model.uncompressed import large_groups
from sluiceway.optim.common.activations import Activations
from sluiceway.optim.common.batch_parts import refuse_sequence_first
from sluiceway.optim.common.checks import WeightWatch, refuse_split_model, refuse_split_since
from sluiceway.optim.common.clipping import check_clipping, norm_and_factor, split_parameters
from sluiceway.optim.common.compilation import CompilationWatch
from sluiceway.optim.common.engine_weights import EngineWeights
from sluiceway.optim.common.in_flight import WeightsInFlight
from sluiceway.optim.common.model_hooks import ModelHooks
from sluiceway.optim.common.norm_carrier import NormCarrier
from sluiceway.optim.common.ordinary import OrdinaryParameters
from sluiceway.optim.common.ownership import ModelOwnership
from sluiceway.optim.common.parameters import (
    check_hyperparameters,
    check_model,
    choose_parameters,
    numbered_parameters,
)
from sluiceway.optim.common.ranks import Ranks
from sluiceway.optim.common.repeated_blocks import RepeatedBlocks, refuse_repeated
from sluiceway.optim.common.state import (
    SLICES,
    STATE_KEY,
    check_frame,
    frame_of,
    plain_state,
    restore_frame,
)
from sluiceway.optim.common.states import EngineStates, StateHooks
from sluiceway.optim.common.step_clock import StepClock
from sluiceway.optim.common.tier_limits import parameter_bytes


@dataclass
class StepProgress:
    """Progress of a step, in one object, so that copies of an optimizer's attributes share it."""

    gathered: bool = False  # Gradients are in the engine, and their norms are in `.grad`.
    given: set[int] = field(default_factory=set)  # Weights that have a gradient in the engine.
    spent: bool = False  # A step has used gradients that were not seen zeroed since.
    lost: str = ""  # The weight whose gradient was lost after it left autograd.
    scaled_loss: bool = False  # Other code than `loss_scale` scales the gradients.
    overflowed: bool = False
    skipped_steps: int = 0
    half_loaded: bool = False  # Loading a state was interrupted.


class EngineOptimizer(StateHooks, ABC):
    """Gathers gradients in an engine during backward, and trains the ordinary parameters itself.

    A subclass makes the engine, takes each gradient, and defines its part of the state. `adam` has
    lr, betas, eps and weight_decay.
    """

    engine: Any
    _reads_files = False  # The values of parameters may be in the files of a model's folder.
    _frozen: Sequence[CompressedWeight] = ()  # Weights that the engine has and does not train.
    _micro_batches = 1  # Parts in which a block computes a batch.
    _owner: str
    _ownership: ModelOwnership | None = None  # None until the constructor has succeeded.
    _states: EngineStates | None = None

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
        self.ranks = self._take_ranks(model)
        selection, groups = choose_parameters(
            self._owner,
            model,
            param_groups,
            lambda wanted: self._select(model, wanted, param_groups is not None),
            self._reads_files,
        )
        for group in groups:  # Checked here, as an engine may create files, which would stay.
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
        repeated = self._blocks_to_repeat(model)
        self.engine = self._make_engine(model)
        activations = self._open_activations()
        trained = [weight.parameter for weight in self.weights]
        blocks = RepeatedBlocks(self._owner, repeated, trained, activations, self._micro_batches)
        super().__init__(groups, adam)
        away = [w.parameter for w in (*self.weights, *self._frozen) if w.away]
        resident = parameter_bytes(model, away)
        self._clock = StepClock(self.engine, self.device, resident, activations)
        self.engine.trace.enable(options.trace is not None, os.fspath(options.trace or ""))
        self._progress = StepProgress()
        self._stepping: list[torch.Tensor] = []
        self._in_flight = WeightsInFlight(
            self.engine, self.of_engine, self.device, self._owner, self._landed()
        )
        taken = [p for _, p in selection.trained + self.frozen]
        self._ownership = ModelOwnership(
            self.engine, self._take_model(model, blocks), self._in_flight, self._lent(), taken
        )

    def _open_activations(self) -> Activations | None:
        """Open the place in which inputs of blocks wait; None: on the device."""
        if self.options.activations == "device":
            return None
        core = self.engine.make_activations(*self._activations_place())
        return Activations(self._owner, core, self.device)

    def _take_model(self, model: nn.Module, repeated: RepeatedBlocks) -> ExitStack:
        """Change the model; the returned stack, or a failure, restores it.

        No callback may hold this optimizer, which would outlive its last reference.
        """
        with ExitStack() as undo:
            undo.callback(_set_trainable, self.frozen, True)
            _set_trainable(self.frozen, False)
            late = self.device.asynchronous or self.ranks.count > 1  # Averaging comes before norms.
            self.carrier = NormCarrier(self._owner, self.weights, late)
            undo.callback(self.carrier.forget)
            self._hooks = ModelHooks(self, model, self.weights)
            undo.callback(self._hooks.remove)
            repeated.hooks = self._hooks
            undo.callback(self._clock.forget_activations)  # Graphs that still need them have them.
            undo.callback(repeated.give_back)
            repeated.start()
            self._watch.note_hooks()
            self._compilation = CompilationWatch(self._compilation_began)
            undo.callback(self._compilation.stop)
            return undo.pop_all()

    def _blocks_to_repeat(self, model: nn.Module) -> list[nn.Module]:
        """Return the blocks to compute again in the backward, but for those that are streamed."""
        stay = self.options.activations == "device"
        if stay and self._micro_batches == 1:
            return []
        blocks = [block for _, block in find_blocks(self._owner, model).blocks]
        if self._micro_batches > 1:
            refuse_sequence_first(self._owner, blocks)
        if stay:
            return []
        refuse_repeated(self._owner, model, blocks)
        return [block for block in blocks if block not in self._streamed_modules()]

    # ---- Methods of a subclass ----

    def _take_ranks(self, model: nn.Module) -> Ranks:
        """Return the ranks that train together; refuses several ones here."""
        ranks = Ranks(self._owner)
        if ranks.count > 1:
            raise Unavailable(
                f"{self._owner}: a process group of {ranks.count} ranks is initialised, but this "
                "optimizer does not average gradients over ranks; start one process, or use "
                "SubspaceAdamW, ZoSgd or torch.optim.AdamW"
            )
        return ranks

    def _streamed_modules(self) -> Collection[nn.Module]:
        """Return the blocks whose weights are streamed; their backward repeats them anyway."""
        return ()

    def _activations_place(self) -> tuple[Any, ...]:
        """Return folder, io and pace of a drive for activations; nothing for host memory."""
        return ()

    @abstractmethod
    def _select(self, model: nn.Module, wanted: Collection[int], grouped: bool) -> Selection:
        """Sort the parameters whose id() is in `wanted`; `grouped` if the user gave groups."""

    @abstractmethod
    def _make_engine(self, model: nn.Module) -> Any:
        """Build the engine of `self.of_engine`; the model is not changed yet."""

    @abstractmethod
    def _end_gathering(self) -> None:
        """Tell the engine that it has the last gradient of a backward."""

    @abstractmethod
    def _enqueue(
        self,
        weights: list[torch.Tensor],
        factor: float,
        own_factors: list[float],
        unscale: float,
        squares: float,
    ) -> tuple[bool, float, float]:
        """Enqueue one step of the engine; return whether it was skipped, the norm, the clipping.

        `factor` applies to all gathered gradients: `unscale`, times the user's common factor on
        norms. `own_factors` apply to each weight's gradient in addition; the list is empty if all
        are 1. `squares` is the sum of squares of all unscaled gradients that the engine does not
        have.
        """

    def _stepped(self) -> None:
        """Hook that runs after each step, enqueued or skipped, when all counts include the step."""

    def _landed(self) -> Callable[[int], None]:
        """Return a function to call with each weight whose update has been waited for."""
        return lambda _weight: None

    def _lent(self) -> Callable[[], list[torch.Tensor]]:
        """Return a function that lists the tensors in use by lanes; it holds no optimizer."""
        stepping = self._stepping
        return lambda: list(stepping)

    def _sizes(self) -> list[tuple[float, float]]:
        """Return sum of squares and largest element of each weight's gathered gradient."""
        return self.of_engine.joined(self.engine.gradient_sizes())

    def _refuse_scaler(self) -> None:
        """Raise if a GradScaler comes too late."""

    def _keeps_entries(self) -> bool:
        """Return whether copies of all states fit into host memory."""
        return True

    def has_states(self) -> bool:
        """Return whether the engine has states of its weights for `opt.state` to show."""
        return self._is_open() and not self._in_flight.forked() and self.engine.committed_steps > 0

    def engine_states_of(self, weight: int) -> list[dict[str, Any]]:
        """Return copies of a compressed weight's states: one, or one for each slice of a batch."""
        return [self.engine.weight_state(number) for number in self.of_engine.numbers(weight)]

    def take_engine_states(self, weight: int, states: list[dict[str, Any]]) -> None:
        """Replace the states of a compressed weight; no update may be in flight."""
        numbers = self.of_engine.numbers(weight)
        for act in (self.engine.check_weight_state, self.engine.load_weight_state):
            for number, state in zip(numbers, states, strict=True):
                act(number, state)

    def _weight_states(self) -> dict[int, dict[str, Any]]:
        """Return the states of the engine's weights by the numbers of their parameters."""
        states = {}
        for number, index in self.numbered_weights().items():
            found = self.engine_states_of(index)
            states[number] = {SLICES: found} if self.weights[index].is_batch else found[0]
        return states

    def _framed(self, state_dict: Any) -> Any:
        """Convert the state of another optimizer to our format, if this one can load it."""
        return state_dict

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Return the engine's part of a state, without the states of its weights."""

    @abstractmethod
    def _check_own_state(self, state_dict: dict[str, Any]) -> None:
        """Refuse a state that this engine cannot load; changes nothing."""

    @abstractmethod
    def _restore_own_state(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of the engine's weights, and `_own_state`, after the checks."""

    # ---- Calls from the model's hooks ----

    def before_forward(self, training: bool) -> None:
        """Drop gathered gradients before a forward of the whole model that trains, if removed.

        Before a forward that does not train, the user may have set gradients aside to put them
        back.
        """
        if training and not self._in_flight.forked():
            self._check_surroundings()
            with self._hooks.backward.turn():
                self._watch.check_buffers()
                self._drop_if_removed()

    def wait(self, weight: int) -> None:
        """Wait until the last update of a weight is applied, before a forward reads the weight."""
        self._in_flight.wait(weight)

    def used_again(self, weight: int) -> None:
        """Prepare for several gradients of a weight that is used more than once in a step."""

    def expect_scaled_loss(self) -> None:
        """Note that gradients are scaled; only `step()` learns the scale."""
        self._progress.scaled_loss = True

    def mark(self) -> Any:
        """Mark this point in the device's work, on this thread's stream."""
        return self.device.mark()

    def begin_backward(self) -> None:
        """Begin to gather: take norms of earlier gradients out of `.grad` until the end."""
        self._check_process()
        self._check_surroundings()
        self._refuse_lost()
        with self._hooks.backward.turn():
            self._states.take_back()
            self._still_spent()  # If another model's loss comes here, zeroing may follow later.
            self.carrier.check_own(earlier_alone=True)
            if self._progress.gathered:
                self.carrier.check_whole()
                if self.carrier.remains():
                    self.carrier.check_unscaled()
                else:
                    self._drop()  # Zeros stay in `.grad`, as torch's do.
            self._progress.gathered = False
            self.carrier.remove()
            # A hook runs with gradients enabled only under backward(create_graph=True).
            self._of_graph = torch.is_grad_enabled()

    @abstractmethod
    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """Take the whole gradient of a matrix or a batch of matrices, which no other code holds.

        Rows are contiguous.
        """

    def end_backward(self, forward_began: Any, backward_began: Any) -> None:
        """Put the norms of the gathered gradients into `.grad`; gets marks of where it began."""
        self._end_gathering()
        with self._hooks.backward.turn():
            self.carrier.place(self._progress.given, self._norms_later(), self._of_graph)
            self._progress.gathered = True
        self._clock.backward(forward_began, backward_began)

    def _norms_later(self) -> Callable[[], list[float]]:
        """Return a function that computes the norms; it does not hold the optimizer."""
        engine, of_engine = self.engine, self.of_engine
        return lambda: [math.sqrt(s) for s, _ in of_engine.joined(engine.gradient_sizes())]

    def lose_gradient(self, weight: int) -> None:
        """Remember a gradient that was lost after it left autograd."""
        self._progress.lost = self.weights[weight].name

    def _compilation_began(self) -> None:
        """Apply all updates when a compilation begins: graphs read weights without waiting."""
        for index in range(len(self.weights)):
            self.used_again(index)
        self._in_flight.synchronize()

    # ---- Gradients until the step ----

    def _still_spent(self) -> bool:
        """Return whether `.grad` has gradients that a step used and the user did not zero."""
        self._progress.spent = self._progress.spent and self.carrier.remains()
        return self._progress.spent

    def _drop(self) -> None:
        self.engine.drop()
        self._progress.gathered, self._progress.given, self._progress.lost = False, set(), ""

    def _drop_if_removed(self) -> None:
        # An empty `.grad` is the only trace of model.zero_grad(), and of a step that GradScaler
        # left out.
        if self._progress.gathered:
            self.carrier.check_whole()
            if not self.carrier.stand():
                self._drop()
                self.carrier.forget()

    @torch.compiler.disable
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient, also the gathered ones."""
        if self._is_open() and not self._in_flight.forked():
            self._hooks.backward.refuse_elsewhere("zero_grad()")
            progress = self._progress
            # Otherwise torch zeroes the norms in place, and the carrier notices that.
            if set_to_none or progress.lost or not progress.gathered:
                if progress.gathered or progress.lost or self.engine.has_gradient():
                    self._hooks.backward.forget()  # A running backward begins to gather anew.
                    self._drop()
                progress.spent = False
                if set_to_none:
                    self.carrier.forget()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        parameters: Iterable[torch.Tensor] | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Clip gradients by norm like `torch.nn.utils.clip_grad_norm_`; return their common norm.

        Call it between the last backward of a step and `step()`, once for each group to clip; each
        call sees the effect of the earlier ones. With `GradScaler`, call it after `unscale_()`. The
        norm is that of unscaled gradients, also with `scale_loss()`. The norm of a compressed
        gradient is the norm of its core, or of the gradient itself with the identity codec.
        Residuals have a clip of their own. If a gradient is not finite, this scales nothing, and
        `step()` will skip.

        Parameters
        ----------
        max_norm : float
        norm_type : float
            2 or inf; another order raises Unavailable.
        parameters : iterable of torch.Tensor, optional
            Parameters of the model; default is all parameters of the optimizer. Parameters of other
            optimizers have ordinary gradients.
        """
        self._check_open()
        order = check_clipping(self._owner, max_norm, norm_type, self.options.max_norm)
        self._average_gradients()
        if parameters is None:
            parameters = numbered_parameters(self.param_groups)
        compressed = [weight.parameter for weight in self.weights]
        chosen, gradients = split_parameters(self._owner, parameters, compressed)
        self._drop_if_removed()
        norms = {}
        if self._progress.gathered:
            self.carrier.check_own()
            known, factors = self._sizes(), self.carrier.factors()
            for number in sorted(chosen & factors.keys()):
                squares, largest = known[number]
                size = largest if order == math.inf else math.sqrt(squares)
                norms[number] = abs(factors[number]) * size
        scale = 1.0 / self.loss_scale.value
        total, factor = norm_and_factor(norms.values(), gradients, float(max_norm), order, scale)
        for gradient in gradients:
            gradient.mul_(factor)
        self.carrier.scale(norms, factor)
        return torch.tensor(total)

    # ---- A step ----

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Enqueue one update of every parameter that has a gradient.

        All checks come before anything is enqueued, so you can repeat a step that raised one of
        their errors. Returns the loss that `closure` returned.

        Raises
        ------
        InvalidArgument, Unavailable
            docs/contract.md lists what is refused.
        Error
            A lane of an earlier step failed; the text names lane and weight. No later step is
            possible.
        """
        self._check_open()
        loss = None
        if closure is not None:
            self._check_surroundings()
            with torch.enable_grad():
                loss = closure()
        with self.ranks.together("step", 1) as together:
            self._check_surroundings()
            self._watch.check_held()
            self._check_step()
            updates = self._ordinary.updates(self.param_groups, self.state)
            due = together.every([float(self._averages_late())], self._same_on_ranks())
        if any(late for (late,) in due):
            self._average_gradients(agreed=True)
            updates = self._ordinary.updates(self.param_groups, self.state)  # There may be more.
        scale = 1.0 / self.loss_scale.value
        with self.ranks.together("step", 0) as together:
            shared, own = self.carrier.split_factors() if self._progress.gathered else (1.0, [])
            squares = self._ordinary.sum_squares() * scale * scale  # This waits for the backward.
            self.carrier.settle()
            same = {
                "the factor on all gradients since the backward": shared,
                "the factors on each gradient": own,
                "the sum of squares of ordinary gradients": squares,
            }
            together.every([], same)
            self._enqueue_step(updates, shared, own, scale, squares)
        return loss

    def _same_on_ranks(self) -> dict[str, Any]:
        """Return what a step depends on beside gradients, for ranks to compare."""
        groups = [
            [(key, value) for key, value in group.items() if key != "params"]
            for group in self.param_groups
        ]
        return {
            "the number of steps": self.engine.committed_steps,
            "param_groups": groups,
            "the loss scale": self.loss_scale.value,
        }

    def _averages_late(self) -> bool:
        """Return whether gradients came since they were averaged over ranks."""
        return False

    def _average_gradients(self, agreed: bool = False) -> None:
        """Average gradients over ranks that came since this was done; `agreed` if some did."""

    def _enqueue_step(
        self, updates: list[Any], shared: float, own: list[float], scale: float, squares: float
    ) -> None:
        # Kept until the next step: lanes write to this storage, even if the user replaces `.data`.
        self._stepping[:] = weights = self.of_engine.tensors()
        given = self._progress.given
        try:
            skipped, norm, clip = self._enqueue(weights, shared * scale, own, scale, squares)
            if not skipped:
                self._ordinary.step(updates, self.state, clip * scale)
                self.of_engine.increment_versions(given)
        finally:
            if not self.engine.has_gradient():  # Otherwise the engine raised and enqueued nothing.
                self._use_up()
            self._in_flight.take_off()
        self._progress.overflowed = skipped
        self._progress.skipped_steps += skipped
        self.loss_scale.update(skipped)
        self._stepped()
        self._clock.step(norm)
        self.ranks.end_step()
        if self._compilation.check():  # Graphs read weights without waiting.
            self._in_flight.synchronize()
            self.before_forward(True)  # The model's hook may be inside of a graph and not run.

    def _check_step(self) -> None:
        """Refuse a step that AdamW could not take correctly."""
        self._watch.check_step(self.param_groups)
        self._states.take_back()
        self._hooks.backward.refuse_elsewhere("step()")
        self._refuse_lost()
        if (self._progress.spent and self._hooks.backward.is_open) or self._still_spent():
            raise InvalidArgument(
                f"{self._owner}.step: gradients of the last step() were not zeroed, but compressed "
                "gradients are used by one step and cannot be added to; call opt.zero_grad() after "
                "each step()"
            )
        self._drop_if_removed()
        self.carrier.check_own()
        if self.carrier.was_unscaled():
            self._refuse_scaler()
            self.expect_scaled_loss()
        self._watch.check_hooks()
        self.carrier.check_given(self._progress.given)

    def _use_up(self) -> None:
        """Note that the engine has used its gradients; their norms stay until zeroed."""
        progress = self._progress
        progress.spent = progress.spent or bool(progress.given)
        progress.given, progress.gathered = set(), False

    # ---- Checks ----

    def _check_surroundings(self) -> None:
        self._check_loaded()
        self._watch.check()
        self.ranks.check_same_group()
        refuse_split_since(self._owner, self.weights)

    def _check_loaded(self) -> None:
        if self._progress.half_loaded:
            raise InvalidArgument(
                f"{self._owner}: load_state_dict() was interrupted, so the state mixes two "
                "checkpoints. Call load_state_dict() again."
            )

    def _check_process(self) -> None:
        if self._in_flight.forked():
            raise InvalidArgument(
                f"{self._owner}: process {os.getpid()} is a forked child and has no lanes; use the "
                "optimizer in the process that made it, or make another one in the child"
            )

    def _refuse_lost(self) -> None:
        if self._progress.lost:
            raise InvalidArgument(
                f"{self._owner}: a backward raised and lost the gradient of {self._progress.lost}; "
                "call opt.zero_grad() and repeat the backwards of this step"
            )

    def _is_open(self) -> bool:
        return self._ownership is not None and not self._ownership.ended

    def _check_not_closed(self) -> None:
        if not self._is_open():
            raise InvalidArgument(f"{self._owner}: the optimizer is closed; make a new one")

    def _check_open(self) -> None:
        self._check_not_closed()
        self._check_process()

    # ---- State and groups of torch.optim.Optimizer ----

    @property
    def state(self) -> EngineStates:
        """State by parameter; changes of a compressed weight's entry are loaded back."""
        return self._states

    @state.setter
    def state(self, states: Any) -> None:
        if self._states is None:  # torch's constructor assigns it.
            self._states = EngineStates(self, self._keeps_entries())
        else:
            self._states.replace(states)

    def _hypers(self, *more: float) -> list[tuple[float, ...]]:
        """Return lr, betas, eps, weight_decay and `more` for each of the engine's weights."""
        of_parameter = {}
        for group in self.param_groups:
            found = (group["lr"], *group["betas"], group["eps"], group["weight_decay"], *more)
            hyper = tuple(map(float, found))
            of_parameter.update((id(p), hyper) for p in group["params"])
        return self.of_engine.spread(of_parameter[id(w.parameter)] for w in self.weights)

    @torch.compiler.disable
    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters and of the engine; loads under `weights_only=True`."""
        self._check_open()
        self._check_loaded()
        self._before_save()
        self._states.take_back()
        self.synchronize()
        state_dict = self._torch_state()
        state_dict["state"] = copy.deepcopy(state_dict["state"])  # Weights' states are copies too.
        state_dict["state"] |= self._weight_states()
        state_dict[STATE_KEY] = {**frame_of(self), **self._own_state()}
        return self._changed_by("saved", state_dict)

    def _torch_state(self) -> dict[str, Any]:
        """Return torch's own part of the state: groups, and states of ordinary parameters."""
        states, self._states = self._states, self._states.ordinary
        try:
            return super().state_dict()
        finally:
            self._states = states

    @torch.compiler.disable
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict()`; training continues from it bit for bit.

        Its tensors may be on any device, as Accelerate leaves them, in any kind of dictionary.

        Raises
        ------
        Error
            The state is broken or belongs to another run, or gathered gradients belong to the
            present state. The call changed nothing.
        KeyboardInterrupt
            Ctrl-C. If loading had begun by then, call `load_state_dict()` again before all else.
        """
        self._check_open()
        state_dict = self._framed(plain_state(self._before_load(state_dict), to_host=True))
        check_frame(self, state_dict)
        self._check_own_state(state_dict)
        self._drop_if_removed()
        if self.engine.has_gradient():
            raise InvalidArgument(
                f"{self._owner}.load_state_dict: gradients of a backward are gathered, which "
                "belong to the present state; call step() or zero_grad() before loading"
            )
        self.synchronize()
        self._progress.half_loaded = True
        # torch's version would cast f32 moments to the dtype of a 16-bit parameter.
        super().load_state_dict({**state_dict, "state": {}})
        restore_frame(self, state_dict)
        self._restore_own_state(state_dict)
        self._states.drop_entries()
        self._progress.half_loaded = False
        self._after_load()

    def numbered_weights(self) -> dict[int, int]:
        """Map a parameter's number in a state_dict to the number of its compressed weight."""
        index_of = {id(weight.parameter): i for i, weight in enumerate(self.weights)}
        numbered = enumerate(numbered_parameters(self.param_groups))
        return {number: index_of[id(p)] for number, p in numbered if id(p) in index_of}

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgument(
            f"{self._owner}: cannot be copied or pickled, as it holds threads and hooks of its "
            "model; load its state_dict() into an optimizer made for the other model"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group during the constructor; raises afterwards."""
        if self._ownership is not None:
            raise InvalidArgument(
                f"{self._owner}.add_param_group: the engine is already built; pass all groups to "
                "the constructor as param_groups="
            )
        super().add_param_group(param_group)
        check_hyperparameters(self._owner, self.param_groups[-1])

    # ---- Beyond torch's interface ----

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return `loss` times the loss scale, which `step()` removes again."""
        return loss * self.loss_scale.value

    @torch.compiler.disable
    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""
        self._check_not_closed()
        self._in_flight.synchronize()

    @property
    def overflowed(self) -> bool:
        """Return whether the last step was skipped."""
        return self._progress.overflowed

    @property
    def skipped_steps(self) -> int:
        """Return the number of steps skipped so far."""
        return self._progress.skipped_steps

    def stats(self) -> dict[str, Any]:
        """Return the last step's seconds, bytes per link, peak bytes per tier and norm."""
        return {
            **self._clock.stats(),
            "skipped": self.overflowed,
            "skipped_steps": self.skipped_steps,
            "loss_scale": self.loss_scale.value,
            **self.ranks.stats(),
        }

    def describe(self) -> WeightTable:
        """Describe each weight of the engine: codec, core shape and bytes; `print` it."""
        return WeightTable(self.engine.describe(index) for index in range(len(self.of_engine)))

    def close(self) -> None:
        """Apply all enqueued updates, write the trace and remove the hooks; idempotent.

        This drops the gradients of compressed weights gathered for the next step, so an optimizer
        that you make afterwards starts with the next backward.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C; the optimizer is still open.
        Timeout
            A lane has made no progress for five seconds, and for longer than ever before. Names
            lane and weight, whose memory is never freed.
        Error
            A lane of an earlier step failed. Names lane and weight.
        """
        if self._ownership is None or not self._ownership.end():
            return
        if self.options.trace is not None:
            self.engine.trace.write_json(os.fspath(self.options.trace))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _set_trainable(parameters: list[tuple[str, nn.Parameter]], trainable: bool) -> None:
    for _, parameter in parameters:
        parameter.requires_grad_(trainable)


def _loss_scale(value: str | float | None) -> _core.LossScale:
    if value is None or value == "dynamic":
        return _core.LossScale(value or "off")
    return _core.LossScale("static", value)
