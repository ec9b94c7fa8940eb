"""Both losses of one direction: a closure on W + eps z and on W - eps z, block by block.

A parameter's `data` is exchanged for a perturbed copy while it is the turn of a half that reads it:
that of a block inside its forward, all others throughout. The weights themselves are only read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.blocks import BlockList
from sluiceway.optim.zo.lockstep import LockStep
from sluiceway.optim.zo.random_state import RandomState
from sluiceway.optim.zo.same_inputs import SameInputs
from sluiceway.optim.zo.weights import PerturbedWeight

Pair = tuple[torch.Tensor, torch.Tensor]
_SIGNS = ("+", "-")


class Measurement:
    """One direction.

    Parameters
    ----------
    owner : str
        Whose error it is.
    model : torch.nn.Module
    blocks : BlockList
    weights : list of PerturbedWeight
    neighbours : callable
        Gives theta + eps z and theta - eps z of a weight.
    inputs : SameInputs
        Of the whole step.
    direction : int
    """

    def __init__(
        self,
        owner: str,
        model: nn.Module,
        blocks: BlockList,
        weights: list[PerturbedWeight],
        neighbours: Callable[[PerturbedWeight], Pair],
        inputs: SameInputs,
        direction: int,
    ) -> None:
        self._owner, self._model, self._blocks = owner, model, blocks
        self._weights, self._neighbours, self._inputs = weights, neighbours, inputs
        self._names = [f"{sign} of direction {direction}" for sign in _SIGNS]
        self._lockstep = LockStep(owner, self._names, self)
        self._own = {id(w.parameter): w.parameter.data for w in weights}
        self._held: list[list[tuple[nn.Parameter, torch.Tensor]]] = [[], []]
        self._waiting: dict[int, list[tuple[nn.Parameter, torch.Tensor]]] = {}
        self._ran: set[int] = set()
        self._random = [RandomState.now()] * 2

    def run(self, closure: Callable[[], Any]) -> list[Any]:
        """What the closure returned in both halves; weights and hooks are as before, come what may.

        Raises
        ------
        InvalidArgument
            The halves do not fit each other, or leave a block out.
        BaseException
            What the closure raised.
        """
        for weight in self._weights:
            if weight.block is None:
                for held, copy in zip(self._held, self._neighbours(weight), strict=True):
                    held.append((weight.parameter, copy))
        for name in self._names:
            self._inputs.begin(name)
        with ExitStack() as undo:
            for weight in self._weights:
                # autocast would keep the cast of one half for the other.
                weight.parameter.requires_grad_(False)
                undo.callback(weight.parameter.requires_grad_, True)
            undo.callback(self._put_back)
            self._hook(undo)
            results = self._lockstep.run(closure)
        self._check_all_ran()
        return results

    # ---- Turns of the halves ----

    def resume(self, half: int) -> None:
        """Its random numbers, and its weights."""
        self._random[half].restore()
        for p, copy in self._held[half]:
            p.data = copy

    def pause(self, half: int) -> None:
        """The weights themselves."""
        self._random[half] = RandomState.now()
        for p, _ in self._held[half]:
            p.data = self._own[id(p)]

    def _put_back(self) -> None:
        # LockStep and this know each other, so that nothing frees copies before the collector runs.
        self._held, self._waiting = [[], []], {}
        for weight in self._weights:
            weight.parameter.data = self._own[id(weight.parameter)]

    # ---- Hooks, called in the thread of a half ----

    def _hook(self, undo: ExitStack) -> None:
        inside = {id(m) for _, block in self._blocks.blocks for m in block.modules()}
        trained = {id(w.parameter) for w in self._weights}
        for name, module in self._model.named_modules():
            reads = any(id(p) in trained for p in module._parameters.values())
            if module is self._model or (reads and id(module) not in inside):
                first = partial(self._called, name or type(module).__name__, module is self._model)
                undo.callback(_before(module, first).remove)
        for number, (name, block) in enumerate(self._blocks.blocks):
            undo.callback(_before(block, partial(self._enter, number, name)).remove)
            after = partial(self._leave, number)
            undo.callback(block.register_forward_hook(after, always_call=True).remove)

    def _called(self, name: str, always: bool, _: nn.Module, args: tuple, kwargs: dict) -> None:
        half = self._names[self._lockstep.running]
        if always or self._inputs.is_fresh(half):
            self._inputs.check(half, name, (args, kwargs))

    def _enter(self, number: int, name: str, _: nn.Module, args: tuple, kwargs: dict) -> None:
        self._called(name, False, _, args, kwargs)
        self._lockstep.meet(name)
        half = self._lockstep.running
        self._ran.add(number)
        if half == 0:
            weights = [w for w in self._weights if w.block == number]
            pairs = [(w.parameter, *self._neighbours(w)) for w in weights]
            mine = [(p, plus) for p, plus, _ in pairs]
            self._waiting[number] = [(p, minus) for p, _, minus in pairs]
        else:
            mine = self._waiting.pop(number)
        self._held[half] = self._held[half] + mine  # A new list: run() still has the first one.
        for p, copy in mine:
            p.data = copy

    def _leave(self, number: int, *_: Any) -> None:
        half = self._lockstep.running
        of_block = {id(w.parameter) for w in self._weights if w.block == number}
        self._held[half] = [(p, c) for p, c in self._held[half] if id(p) not in of_block]
        for weight in self._weights:
            if weight.block == number:
                weight.parameter.data = self._own[id(weight.parameter)]

    def _check_all_ran(self) -> None:
        for number, (name, _) in enumerate(self._blocks.blocks):
            if number not in self._ran and any(w.block == number for w in self._weights):
                raise InvalidArgument(
                    f"{self._owner}.step: block {name} did not run in the closure, expected every "
                    "block that is trained; call modules and not their forward(), or freeze it"
                )


def _before(module: nn.Module, hook: Callable[..., None]) -> torch.utils.hooks.RemovableHandle:
    return module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
