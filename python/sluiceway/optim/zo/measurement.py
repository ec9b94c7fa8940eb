"""Measures all losses of a step: closures on W + eps z and W - eps z for each direction z.

During the turn of a forward pass, the `data` of parameters is replaced by its copies: for the
weights of a unit while the unit runs, for other weights throughout. The weights themselves are only
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.random_state import RandomState
from sluiceway.optim.zo.lockstep import LockStep
from sluiceway.optim.zo.same_inputs import SameInputs

if TYPE_CHECKING:
    from sluiceway.optim.zo.tier import Tier

_EVERYWHERE = -1
_SIGNS = ("+", "-")


@dataclass(frozen=True)
class Unit:
    """A module that is perturbed while its forward runs."""

    label: str  # For errors: "block layers.1".
    module: nn.Module


class Copies(NamedTuple):
    """Perturbed weights of a parameter, one for each side."""

    parameter: nn.Parameter
    sides: Sequence[torch.Tensor]


@dataclass(frozen=True)
class ForwardPass:
    """One run of one closure, on one side of a direction."""

    name: str
    direction: int  # Its place among those that this process measures.
    side: int
    closure: int


def perturbed_forwards(directions: Sequence[int], closures: int) -> list[ForwardPass]:
    """List the forward passes of a step: for each direction both sides, each with all closures."""
    return [
        ForwardPass(f"{_SIGNS[side]} of direction {d}{_of_closure(k, closures)}", place, side, k)
        for place, d in enumerate(directions)
        for side in range(2)
        for k in range(closures)
    ]


def plain_forwards(closures: int) -> list[ForwardPass]:
    """List one forward pass per closure, on the weights themselves."""
    return [ForwardPass(f"closure {k}", 0, 0, k) for k in range(closures)]


def _of_closure(number: int, of: int) -> str:
    return f", closure {number}" if of > 1 else ""


@dataclass
class _Frame:
    """Copies that a forward pass puts into parameters while one unit runs."""

    unit: int
    held: list[tuple[nn.Parameter, torch.Tensor]]


@dataclass
class _Shared:
    """Copies of a unit's weights, shared by all forward passes of a direction."""

    copies: list[Copies]
    entered: int = 0
    left: int = 0


@dataclass
class Measured:
    """Subject of a measurement: a model, its units and its trained parameters.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    units : list of Unit
    parameters : list of torch.nn.Parameter
        All trained parameters.
    resting : dict
        Maps the id of a parameter to its data while nothing reads it; its own data by default.
    """

    owner: str
    model: nn.Module
    units: list[Unit]
    parameters: list[nn.Parameter]
    resting: dict[int, torch.Tensor] = field(default_factory=dict)


class Measurement:
    """One run of all forward passes.

    Parameters
    ----------
    measured : Measured
    source : Tier
    forwards : list of ForwardPass
    inputs : SameInputs, optional
        Compares the inputs of forward passes; None compares nothing.
    """

    def __init__(
        self,
        measured: Measured,
        source: Tier,
        forwards: list[ForwardPass],
        inputs: SameInputs | None = None,
    ) -> None:
        self._measured, self._source, self._forwards, self._inputs = (
            measured,
            source,
            forwards,
            inputs,
        )
        self._lockstep = LockStep(
            measured.owner, [forward.name for forward in forwards], self._resume, self._pause
        )
        with torch_private.asking_no_class():  # Of weights that lie elsewhere, too.
            self._own = {id(p): p.data for p in measured.parameters}
        self._resting = self._own | measured.resting
        self._frames: list[list[_Frame]] = [[] for _ in forwards]
        self._shared: dict[tuple[int, int], _Shared] = {}
        self._sharing = len([forward for forward in forwards if forward.direction == 0])
        self._ran: set[int] = set()
        self._random = [RandomState.now()] * len(forwards)

    def run(self, closures: Sequence[Callable[[], Any]], quiet: Undisturbed) -> list[Any]:
        """Return each forward pass's result; weights and hooks are restored, also after an error.

        Parameters
        ----------
        closures : sequence of callable
        quiet : Undisturbed
            Entered by the caller.

        Raises
        ------
        InvalidArgument
            The forward passes ran different units, or left a unit out.
        BaseException
            Raised by a closure.
        """
        if self._inputs is not None:
            for forward in self._forwards:
                self._inputs.begin(forward.name, forward.closure)
        with ExitStack() as undo:
            undo.callback(self._put_back)
            undo.callback(self._release_all)
            for p in self._measured.parameters:
                # autocast caches casts of parameters that need gradients, across forward passes.
                undo.callback(p.requires_grad_, p.requires_grad)
                p.requires_grad_(False)
                p.data = self._resting[id(p)]
            self._hold_throughout()
            self._hook(undo)
            results = self._lockstep.run(
                [closures[forward.closure] for forward in self._forwards], quiet
            )
            self._check_all_ran()
        return results

    def _hold_throughout(self) -> None:
        for direction in sorted({forward.direction for forward in self._forwards}):
            copies = self._source.throughout(direction)
            for forward, frames in zip(self._forwards, self._frames, strict=True):
                if forward.direction == direction:
                    frames.append(_Frame(_EVERYWHERE, _held(copies, forward.side)))

    # ---- Turns of the forward passes ----

    def _resume(self, forward: int) -> None:
        """Restore the random state and the weights of a forward pass."""
        self._random[forward].restore()
        for frame in self._frames[forward]:
            for p, copy in frame.held:
                p.data = copy

    def _pause(self, forward: int) -> None:
        """Save the random state of a forward pass, and put the resting data into parameters."""
        self._random[forward] = RandomState.now()
        for frame in self._frames[forward]:
            for p, _ in frame.held:
                p.data = self._resting[id(p)]

    def _put_back(self) -> None:
        for p in self._measured.parameters:
            p.data = self._own[id(p)]
        # LockStep and this object refer to each other: what it holds would wait for the collector.
        self._frames, self._shared = [[] for _ in self._forwards], {}
        self._own, self._resting, self._random, self._inputs = {}, {}, [], None

    def _release_all(self) -> None:
        """Release units for forward passes that were ended inside of them."""
        for unit, direction in self._shared:
            self._source.release(unit, direction)

    # ---- Hooks, called in the thread of a forward pass ----

    def _hook(self, undo: ExitStack) -> None:
        inside = {id(m) for unit in self._measured.units for m in unit.module.modules()}
        trained = {id(p) for p in self._measured.parameters}
        for name, module in self._measured.model.named_modules():
            reads = any(id(p) in trained for p in torch_private.held_parameters(module).values())
            whole = module is self._measured.model
            if whole or (reads and id(module) not in inside):
                first = partial(self._called, name or type(module).__name__, whole)
                undo.callback(_before(module, first).remove)
        for number, unit in enumerate(self._measured.units):
            undo.callback(_before(unit.module, partial(self._enter, number)).remove)
            after = partial(self._leave, number)
            undo.callback(unit.module.register_forward_hook(after, always_call=True).remove)

    def _called(self, name: str, always: bool, _: nn.Module, args: tuple, kwargs: dict) -> None:
        forward = self._forwards[self._lockstep.running].name
        if self._inputs is not None and (always or self._inputs.is_fresh(forward)):
            self._inputs.check(forward, name, (args, kwargs))

    def _enter(self, unit: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        label = self._measured.units[unit].label
        if module is not self._measured.model:
            self._called(label, False, module, args, kwargs)
        self._lockstep.meet(label)
        number = self._lockstep.running
        forward = self._forwards[number]
        self._ran.add(unit)
        key = (unit, forward.direction)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(self._source.acquire(*key))
        shared.entered += 1
        frame = _Frame(unit, _held(shared.copies, forward.side))
        self._frames[number].append(frame)
        for p, copy in frame.held:
            p.data = copy

    def _leave(self, unit: int, _: nn.Module, __: Any, output: Any) -> Any:
        number = self._lockstep.running
        frames = self._frames[number]
        if not frames or frames[-1].unit != unit:  # The unit failed before it was entered.
            return output
        frame = frames.pop()
        for p, _copy in frame.held:
            p.data = self._present(frames, p)
        key = (unit, self._forwards[number].direction)
        shared = self._shared[key]
        shared.left += 1
        output = _without_weights(output, frame)
        if shared.left == shared.entered and shared.entered % self._sharing == 0:
            del self._shared[key]
            self._source.release(*key)
        return output

    def _present(self, frames: list[_Frame], p: nn.Parameter) -> torch.Tensor:
        """Data of a parameter in the innermost running forward that replaces it."""
        for frame in reversed(frames):
            for q, copy in frame.held:
                if p is q:
                    return copy
        return self._resting[id(p)]

    def _check_all_ran(self) -> None:
        for number, unit in enumerate(self._measured.units):
            if number not in self._ran:
                raise InvalidArgument(
                    f"{self._measured.owner}.step: {unit.label} is trained but did not run in the "
                    "closure; call modules and not their forward(), or freeze it"
                )


def _held(copies: list[Copies], side: int) -> list[tuple[nn.Parameter, torch.Tensor]]:
    return [(one.parameter, one.sides[side]) for one in copies]


def _without_weights(output: Any, frame: _Frame) -> Any:
    """Clone outputs that are views of a module's weights, whose memory is reused soon."""
    storages = {copy.untyped_storage().data_ptr() for _, copy in frame.held if copy.numel()}

    def own(value: torch.Tensor) -> torch.Tensor:
        shares = value.layout is torch.strided and value.untyped_storage().data_ptr() in storages
        return value.clone() if shares else value

    return tree_map_only(torch.Tensor, own, output)


def _before(module: nn.Module, hook: Callable[..., None]) -> torch.utils.hooks.RemovableHandle:
    return module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
