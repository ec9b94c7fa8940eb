"""Weights whose update is in flight: whoever reads one waits for it, whoever looks at it does not.

Between `step()` and its landing a parameter has a class of its own. torch asks that class before
any function gets the parameter: `F.linear(x, p)`, `p.norm()`, `p.data`, `torch._foreach_add(...)`,
`copy.deepcopy`, pickle. A function that reads values waits, and the parameter is what it was; one
that only looks at the gradient, the shape or the like goes on, so that `zero_grad()` and
`clip_grad_norm_()` wait for nothing. A forward pre-hook of the module waits before torch asks.
Function transforms, which do not ask, are made to (`torch_private.py`).

What does not ask cannot wait: tensors that were made from the storage before `step()`, and code
that reads parameters behind Python's back, which is TorchScript and what torch.compile made
(`compilation.py`).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.engine_weights import EngineWeights

_LANDING = "_sluiceway_land"  # The attribute of a parameter in flight that says whom to ask.

_MAKES_PARAMETERS = nn.Parameter.__new__.__code__


def _land_those_in(value: Any) -> None:
    if isinstance(value, _InFlight):
        getattr(value, _LANDING)()
    elif isinstance(value, (list, tuple)):
        for each in value:
            _land_those_in(each)
    elif isinstance(value, dict):
        _land_those_in(list(value.values()))


class _InFlight:
    """Stands in front of a parameter's own class while an update is in flight."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in torch_private.LOOKS:
            with torch_private.asking_no_class():
                return func(*args, **kwargs)
        _land_those_in((args, kwargs))
        return func(*args, **kwargs)

    def as_subclass(self, kind: type) -> Any:
        getattr(self, _LANDING)()  # torch does not ask.
        return self.as_subclass(kind)

    def detach(self) -> Any:
        getattr(self, _LANDING)()
        if sys._getframe(1).f_code is _MAKES_PARAMETERS:  # Wants the class that there was.
            return torch_private.of_class(type(self), self)
        return self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        getattr(self, _LANDING)()
        return self.__deepcopy__(memo)  # Of its own class, which it has again.

    def __reduce_ex__(self, protocol: int) -> Any:
        getattr(self, _LANDING)()
        return self.__reduce_ex__(protocol)


@functools.cache
def _class_in_flight(landed: type) -> type:
    return type(landed.__name__, (_InFlight, landed), {"landed": landed})


class WeightsInFlight:
    """The weights of one engine, and which of them have an update in flight.

    Parameters
    ----------
    engine : object
        Its `wait(index, compute)` comes back when what is enqueued on the stream `compute` from
        now on sees the update of a weight.
    of_engine : EngineWeights
    device : DeviceOps
    owner : str
        The optimizer's name, for errors.
    landed : callable
        Told the index of each weight that was waited for. It must not hold the optimizer, which
        would then outlive its last user.
    """

    def __init__(
        self,
        engine: Any,
        of_engine: EngineWeights,
        device: DeviceOps,
        owner: str,
        landed: Callable[[int], None],
    ) -> None:
        self._engine, self._device = engine, device
        self._owner = owner
        self._of_engine = of_engine
        self._names = [weight.name for weight in of_engine.weights]
        self._parameters = [weight.parameter for weight in of_engine.weights]
        # Another optimizer of the same model may have its own in flight just now.
        classes = [getattr(type(p), "landed", type(p)) for p in self._parameters]
        self._classes = [(landed_as, _class_in_flight(landed_as)) for landed_as in classes]
        self._landed = landed
        self._taken_off = 0  # How often: a wait that began before the last is no landing.
        # The stream that each weight's last update was waited for on; None: nobody has waited.
        self._landed_on: list[Any] = [None] * len(self._parameters)
        self._process = os.getpid()
        torch_private.tell_before_wrapping(_land_those_in)

    def forked(self) -> bool:
        """Return whether this is a child of the process whose lanes apply updates."""
        return os.getpid() != self._process

    def take_off(self) -> None:
        """A step is enqueued: from now on whoever reads a weight waits for it."""
        self._taken_off += 1
        self._landed_on = [None] * len(self._parameters)
        rows = zip(self._parameters, self._classes, strict=True)
        for index, (parameter, (_, in_flight)) in enumerate(rows):
            setattr(parameter, _LANDING, functools.partial(self.wait, index))
            parameter.__class__ = in_flight

    def names(self) -> list[str]:
        """Names of the weights that nobody has waited for yet."""
        return [name for i, name in enumerate(self._names) if self._flies(i)]

    def wait(self, index: int) -> None:
        """Come back when the last update of a weight is applied.

        Raises
        ------
        InvalidArgument
            In a forked child, if the update is in flight: only the parent applies it.
        """
        if self.forked():
            self._refuse_in_child([index])
            return
        taken_off = self._taken_off
        compute = self._device.compute()
        if self._landed_on[index] is compute:  # As where checkpointing repeats a forward.
            return
        for number in self._of_engine.numbers(index):
            self._engine.wait(number, compute)
        if taken_off == self._taken_off:  # Else another thread enqueued a step meanwhile.
            self._land([index])
            self._landed_on[index] = compute

    def synchronize(self) -> None:
        """Come back when every update is applied; in a forked child as `wait`."""
        indices = range(len(self._parameters))
        if self.forked():
            self._refuse_in_child(indices)
            return
        taken_off = self._taken_off
        self._engine.synchronize()
        if taken_off == self._taken_off:
            self._land(indices)

    def give_back(self) -> None:
        """No update is in flight any more, or ever lands: leave the parameters as found."""
        self._land(range(len(self._parameters)))

    def _flies(self, index: int) -> bool:
        return type(self._parameters[index]) is self._classes[index][1]

    def _land(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self._flies(index):
                parameter = self._parameters[index]
                parameter.__class__ = self._classes[index][0]
                delattr(parameter, _LANDING)
            self._landed(index)

    def _refuse_in_child(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self._flies(index):
                raise InvalidArgument(
                    f"{self._owner}: {self._names[index]} is read in process {os.getpid()}, a "
                    f"forked child, but its update was in flight and process {self._process} "
                    "applies it, expected applied weights; call synchronize() before the fork"
                )
