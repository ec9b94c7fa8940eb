"""Which weights have the gradients that stand for all compressed ones: one, or two in some steps.

Torch has a gradient at every weight that got one. Whoever asks `requires_grad`, or sets `.grad` of
what is frozen to None, shall find the sentinel where the gradients would be. So it stands at the
smallest weight that is trained and got a gradient in this step. Where some of the weights that got
one were frozen since, between two backwards, their gradients are there all the same: then a second
sentinel at a frozen weight stands for them, and the first for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common.sentinel import ROOM, Sentinel


class Carriers:
    """The sentinels of one optimizer, at the weights that carry them at present.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    weights : list of CompressedWeight
    asynchronous : bool
        As `DeviceOps` has it.

    Raises
    ------
    InvalidArgument
        All weights are of one element.
    """

    def __init__(self, owner: str, weights: list[CompressedWeight], asynchronous: bool) -> None:
        self._owner, self._weights, self._asynchronous = owner, weights, asynchronous
        self._ranked = _ranked(owner, weights)
        self._sentinels: dict[int, Sentinel] = {}
        # Which weights the second one stands for, and those that were trained when it was chosen.
        self.frozen: set[int] = set()
        self._trained: set[int] = set()
        self._carry([self._ranked[0]])

    @property
    def numbers(self) -> list[int]:
        """Of the weights that carry one; the first is that of the trained weights."""
        return list(self._sentinels)

    @property
    def parameter(self) -> torch.Tensor:
        """The weight that carries the first one."""
        return self._weights[self.numbers[0]].parameter

    @property
    def name(self) -> str:
        """The name of that weight."""
        return self._weights[self.numbers[0]].name

    def choose(self, taken: Collection[int]) -> None:
        """Find who carries the gradients of the weights in `taken`, before they are placed.

        While no weight is frozen it is always the same one, whether it is in `taken` or not.
        """
        unmoved = {n for n in self._ranked if not self._weights[n].parameter.requires_grad}
        had = [number for number in self._ranked if number in taken]
        trained = [number for number in had if number not in unmoved]
        frozen = [number for number in had if number in unmoved]
        self._trained = set(trained)
        self.frozen = set(frozen) if trained else set()
        if trained and frozen:
            self._carry([trained[0], frozen[0]])
        else:
            self._carry((had if unmoved and had else self._ranked)[:1])

    def _carry(self, numbers: list[int]) -> None:
        if numbers == self.numbers:
            return
        left = {number: s for number, s in self._sentinels.items() if number not in numbers}
        for sentinel in left.values():
            sentinel.release()
        self._sentinels = {
            number: self._sentinels.get(number)
            or Sentinel(self._weights[number].parameter, self._owner)
            for number in numbers
        }

    def place(
        self, norm: Callable[[], float], norms: Callable[[], list[float]], of_graph: bool = False
    ) -> None:
        """Make the gradients carry the `norm` of all, or each that of its part of all `norms`."""
        if len(self._sentinels) == 1:
            (sentinel,) = self._sentinels.values()
            if self._asynchronous and not of_graph:
                sentinel.place_unread(norm)
            else:
                sentinel.place(norm(), of_graph)
            return
        parts: tuple[list[float], list[float]] = ([], [])
        for number, each in enumerate(norms()):
            parts[number in self.frozen].append(each)
        for sentinel, part in zip(self._sentinels.values(), parts, strict=True):
            sentinel.place(math.hypot(*part), of_graph)

    def settle(self) -> None:
        """The gradients are about to be used up: their norm can be told for the last time."""
        for sentinel in self._sentinels.values():
            sentinel.settle()

    def stands_at(self, parameter: object) -> bool:
        """Whether its `.grad` is a sentinel, or what somebody computed from one."""
        return any(s.stands and s.parameter is parameter for s in self._sentinels.values())

    def placed(self) -> bool:
        """Whether they were placed, and we have not taken them away."""
        return any(sentinel.stands for sentinel in self._sentinels.values())

    def remove(self) -> None:
        """Take them away, if they are there: more gradients are to be gathered."""
        for sentinel in self._sentinels.values():
            sentinel.remove()

    def forget(self) -> None:
        """Take them away for good: whoever still holds one holds nothing of the next one."""
        for sentinel in self._sentinels.values():
            sentinel.forget()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile none stands anywhere; gradients that come are others'."""
        kept = [(s, s.parameter.grad) for s in self._sentinels.values() if s.stands]
        self.remove()
        try:
            yield
        finally:
            for sentinel, gradient in kept:
                sentinel.put_back(gradient)

    def release(self) -> None:
        """Leave the weights as they were found."""
        for sentinel in self._sentinels.values():
            sentinel.release()

    def removed(self) -> bool:
        """Whether somebody else took them away: `model.zero_grad()`."""
        return all(sentinel.removed() for sentinel in self._sentinels.values())

    def remains(self) -> bool:
        """Whether one is left that nobody has removed, or made zero."""
        return any(sentinel.remains() for sentinel in self._sentinels.values())

    def zeroed(self) -> bool:
        """Whether somebody made them zero: `model.zero_grad(set_to_none=False)`."""
        standing = [s for s in self._sentinels.values() if not s.removed()]
        return any(s.zeroed() for s in standing) and not self.remains()

    def factors(self) -> list[float]:
        """By how much each was scaled since it was placed, as `Sentinel.factor()`."""
        return [sentinel.factor() for sentinel in self._sentinels.values()]

    def check_whole(self) -> None:
        """Refuse that one was removed, and another was not.

        Raises
        ------
        InvalidArgument
            Both weights are named.
        """
        lost = [number for number, s in self._sentinels.items() if s.removed()]
        left = [number for number in self._sentinels if number not in lost]
        if lost and left:
            raise removed_in_part(
                self._owner, self._weights[lost[0]].name, self._weights[left[0]].name
            )

    def frozen_since(self) -> str | None:
        """Name of a weight that is trained yet, where the first carrier is not any more."""
        trained = [n for n in self._trained if self._weights[n].parameter.requires_grad]
        first = self.numbers[0]
        if first not in self._trained or first in trained or not trained:
            return None
        return self._weights[min(trained)].name


def removed_in_part(owner: str, lost: str, left: str) -> InvalidArgument:
    """The error of gradients that were removed at `lost`, and not at `left`."""
    return InvalidArgument(
        f"{owner}: the gradient of {lost} was removed, that of {left} was not, expected all or "
        "none, as compressed gradients cannot be removed one by one; freeze a part by "
        "requires_grad_(False) before the first forward of a step, or call opt.zero_grad() for all"
    )


def _ranked(owner: str, weights: list[CompressedWeight]) -> list[int]:
    """Numbers of those that can carry a sentinel: the smallest that has room for it first."""

    def rank(number: int) -> tuple[bool, int]:
        count = weights[number].parameter.numel()
        return (False, count) if count >= ROOM else (True, -count)

    numbers = sorted(range(len(weights)), key=rank)
    able = [number for number in numbers if weights[number].parameter.numel() >= 2]
    if not able:
        weight = weights[numbers[0]]
        raise InvalidArgument(
            f"{owner}: target= picks {weight.name}, of {weight.parameter.numel()} elements, and "
            "nothing larger, expected a weight of at least 2; leave it out of target="
        )
    return able
