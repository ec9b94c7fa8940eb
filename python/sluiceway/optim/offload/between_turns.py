"""Values of streamed weights between the turns of their blocks.

A parameter then keeps shape, type and device, but has no memory. A read gives it memory of its own
with the value, which stays until the next step, since a graph may use it. A change of that memory,
or another tensor put in its place, counts like a change of any weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import absent
from sluiceway.optim.offload.edited_weights import frozen_was_changed, load_edited
from sluiceway.optim.offload.weight_bits import checksum


class BetweenTurns:
    """The keeper of streamed parameters (`elsewhere.Keeper`).

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : OffloadEngine
    weights : list of CompressedWeight
        All weights of the engine, in its order.
    numbers : list of int
        Those that are away.
    """

    fills_state_dict = False

    def __init__(
        self, owner: str, engine: Any, weights: list[CompressedWeight], numbers: list[int]
    ) -> None:
        self.owner = owner
        self._engine, self._weights = engine, weights
        self._number = {id(weights[i].parameter): i for i in numbers}
        self._absent: dict[int, torch.Tensor] = {}
        self._own: dict[int, torch.Tensor] = {}  # Weights that have memory of their own,
        self._known: dict[int, tuple[Any, ...]] = {}  # and the marks of what the engine has.
        self._in_turn: set[int] = set()

    def empty(self) -> None:
        """Free the memory of all parameters, whose values the engine has."""
        with torch_private.asking_no_class():
            for number in self._number.values():
                p = self._weights[number].parameter
                p.data = self._absent[number] = absent(p, p.device)

    # ---- Turns ----

    def begin_turn(self, numbers: list[int], values: list[torch.Tensor]) -> list[int]:
        """Put values into parameters; return the versions that they have then."""
        self._in_turn.update(numbers)
        with torch_private.asking_no_class():
            for number, value in zip(numbers, values, strict=True):
                self._weights[number].parameter.data = value
        return self.versions(numbers)

    def end_turn(self, numbers: list[int]) -> None:
        """Take the values out again."""
        with torch_private.asking_no_class():
            for number in numbers:
                p = self._weights[number].parameter
                p.data = self._own.get(number, self._absent[number])
        self._in_turn.difference_update(numbers)

    def versions(self, numbers: list[int]) -> list[int]:
        """Return autograd's versions of parameters."""
        with torch_private.asking_no_class():
            return [torch_private.version(self._weights[i].parameter) for i in numbers]

    # ---- The keeper's methods ----

    def name_of(self, p: nn.Parameter) -> str:
        """The parameter's name in the model."""
        return self._weights[self._number[id(p)]].name

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Return a copy of a parameter's trained weights in host memory."""
        number = self._number[id(p)]
        self._adopt([number])
        if number not in self._own:
            return self._engine.read_weight(number)
        return self._own[number].detach().cpu().clone()

    def value_of(self, p: nn.Parameter) -> torch.Tensor:
        """Return the value of any parameter of the model."""
        return self.theta_on_host(p) if id(p) in self._number else p.detach()

    def refresh(self, p: nn.Parameter) -> bool:
        """Give a parameter memory of its own with its value."""
        number = self._number[id(p)]
        self._adopt([number])
        if number not in self._own and number not in self._in_turn:
            value = self._engine.read_weight(number)
            self._known[number] = _mark(value)
            with torch_private.asking_no_class():
                p.data = self._own[number] = value.to(p.device)
        return True

    def fetch_all(self) -> None:
        """Give all parameters memory of their own."""
        for number in self._number.values():
            self.refresh(self._weights[number].parameter)

    # ---- Changes by other code ----

    def forget(self) -> None:
        """Free the memory that parameters have, with all changes in it."""
        with torch_private.asking_no_class():
            for number in self._number.values():
                if number not in self._in_turn and self._absent:
                    self._weights[number].parameter.data = self._absent[number]
        self._own.clear()
        self._known.clear()

    def take_over(self, numbers: Iterable[int] | None = None) -> None:
        """Set the masters of weights that other code has changed.

        Raises
        ------
        InvalidArgument
            Gradients are gathered, which do not belong to the new values, or the weight is frozen.
            The text names the weight. The call changed nothing.
        """
        wanted = list(self._number.values() if numbers is None else numbers)
        self._adopt(wanted)
        for number in sorted(self._own.keys() & wanted):
            weight, here = self._weights[number], _mark(self._own[number].detach().cpu())
            if number not in self._known:
                self._known[number] = _mark(self._engine.read_weight(number))
            if here == self._known[number]:
                continue
            if weight.frozen:
                raise InvalidArgument(frozen_was_changed(self.owner, weight.name))
            load_edited(self.owner, self._engine, number, weight)
            self._known[number] = here

    def _adopt(self, numbers: Iterable[int]) -> None:
        """Take note of tensors that were put in the place of absent ones."""
        if not self._absent:
            return
        with torch_private.asking_no_class():
            for number in numbers:
                p = self._weights[number].parameter
                held = self._own.get(number, self._absent[number])
                if number not in self._in_turn and p.data_ptr() != held.data_ptr():
                    self._own[number] = p.data
                    self._known.pop(number, None)


def _mark(value: torch.Tensor) -> tuple[Any, ...]:
    """Return what differs for values of different types, shapes or bits, on the host."""
    return value.dtype, value.shape, checksum(value)
