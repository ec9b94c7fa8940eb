"""Weights whose update is in flight: code that reads such a weight waits for its update.

Between `step()` and the landing of its update a parameter has a class of its own. torch asks that
class before any function gets the parameter. A function that reads values waits, and then the
parameter has its original class again. A function that reads only the gradient, the shape or the
like does not wait, so `zero_grad()` and `clip_grad_norm_()` wait for nothing. A forward pre-hook of
the module waits before torch asks. Function transforms do not ask the class, so `torch_private.py`
makes them ask. Code that does not ask the class cannot wait: docs/contract.md lists it.
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

_LANDING = "_sluiceway_land"  # Attribute of a parameter in flight: a call that waits for it.

_MAKES_PARAMETERS = nn.Parameter.__new__.__code__


def _land_those_in(value: Any) -> None:
    if isinstance(value, _InFlight):
        getattr(value, _LANDING)()
    elif isinstance(value, (list, tuple)):
        for each in value:
            _land_those_in(each)
    elif isinstance(value, dict):
        _land_those_in(list(value.values()))


def _after_landing(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        getattr(self, _LANDING)()
        return getattr(self, name)(*args)  # Its original class, which self has again.

    return method


class _InFlight:
    """Base class that a parameter gets before its original one while its update is in flight."""

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

    # torch does not call __torch_function__ here.
    as_subclass, __deepcopy__, __reduce_ex__ = map(
        _after_landing, ("as_subclass", "__deepcopy__", "__reduce_ex__")
    )

    def detach(self) -> Any:
        getattr(self, _LANDING)()
        if sys._getframe(1).f_code is _MAKES_PARAMETERS:  # It needs the class from before.
            return torch_private.of_class(type(self), self)
        return self.detach()


@functools.cache
def _class_in_flight(landed: type) -> type:
    return type(landed.__name__, (_InFlight, landed), {"landed": landed})


class WeightsInFlight:
    """Knows which weights of one engine have an update in flight, and waits for them.

    The engine's `wait(index, compute)` returns when all later work on the stream `compute` sees the
    update of a weight. `landed` is called with the index of each weight whose update was waited
    for. It must not hold the optimizer, which would then outlive its last user.
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
        # Another optimizer of the same model may have weights in flight now.
        classes = [getattr(type(p), "landed", type(p)) for p in self._parameters]
        self._classes = [(landed_as, _class_in_flight(landed_as)) for landed_as in classes]
        self._landed = landed
        self._taken_off = 0  # Count of calls; a wait that began before the last one lands nothing.
        # Stream that has waited for each weight's last update; None if no stream has waited.
        self._landed_on: list[Any] = [None] * len(self._parameters)
        self._process = os.getpid()
        torch_private.tell_before_wrapping(_land_those_in)

    def forked(self) -> bool:
        """Return whether this is a child of the process whose lanes apply updates."""
        return os.getpid() != self._process

    def take_off(self) -> None:
        """Make every read of a weight wait for the step that was just enqueued."""
        self._taken_off += 1
        self._landed_on = [None] * len(self._parameters)
        rows = zip(self._of_engine.weights, self._classes, strict=True)
        for index, (weight, (_, in_flight)) in enumerate(rows):
            if weight.away:  # Whoever reads it gets it from the engine, which waits.
                continue
            parameter = weight.parameter
            setattr(parameter, _LANDING, functools.partial(self.wait, index))
            parameter.__class__ = in_flight

    def names(self) -> list[str]:
        """Return the names of the weights whose update is still in flight."""
        return [name for i, name in enumerate(self._names) if self._flies(i)]

    def wait(self, index: int) -> None:
        """Wait until the last update of a weight is applied.

        Raises InvalidArgument in a forked child if the update is in flight, as only the parent
        applies it.
        """
        if self.forked():
            self._refuse_in_child([index])
            return
        taken_off = self._taken_off
        compute = self._device.compute()
        if self._landed_on[index] is compute:  # For example if checkpointing repeats a forward.
            return
        for number in self._of_engine.numbers(index):
            self._engine.wait(number, compute)
        if taken_off == self._taken_off:  # Otherwise another thread has enqueued a step meanwhile.
            self._land([index])
            self._landed_on[index] = compute

    def synchronize(self) -> None:
        """Wait until every update is applied; raises like `wait` in a forked child."""
        indices = range(len(self._parameters))
        if self.forked():
            self._refuse_in_child(indices)
            return
        taken_off = self._taken_off
        self._engine.synchronize()
        if taken_off == self._taken_off:
            self._land(indices)

    def give_back(self) -> None:
        """Give the parameters their original class back; no update will land any more."""
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
                    "applies it; call synchronize() before the fork"
                )
