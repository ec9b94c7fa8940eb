"""Weights whose update is in flight: whoever reads one waits for it, whoever looks at it does not.

Between `step()` and its landing a parameter has a class of its own. torch asks that class before
any function gets the parameter: `F.linear(x, p)`, `p.norm()`, `p.data`, `torch._foreach_add(...)`,
`copy.deepcopy`, pickle. A function that reads values waits, and the parameter is what it was; one
that only looks at the gradient, the shape or the like goes on, so that `zero_grad()` and
`clip_grad_norm_()` wait for nothing. A forward pre-hook of the module waits before torch asks.
Function transforms, which do not ask, are made to (`transforms.py`).

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

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.common.engine_weights import EngineWeights

# Where torch 2.11 looks its wrapping functions up: `test_in_flight.py` fails where one has moved.
_WRAPPERS = (
    ("eager_transforms", "_wrap_for_grad"),
    ("eager_transforms", "_wrap_functional_tensor"),
    ("vmap", "_add_batch_dim"),
)


@functools.cache
def tell_before_wrapping(tell: Callable[[Any], None]) -> None:
    """Let `tell` see each tensor that a transform is about to wrap, from now on.

    Parameters
    ----------
    tell : callable
        Gets the tensor. torch.compile traces it, too.
    """
    import torch._functorch.eager_transforms
    import torch._functorch.vmap

    for module_name, name in _WRAPPERS:
        module = getattr(torch._functorch, module_name)
        setattr(module, name, _telling(tell, getattr(module, name)))


def _telling(tell: Callable[[Any], None], wrap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wrap)
    def telling(tensor: torch.Tensor, *more: int) -> torch.Tensor:
        tell(tensor)
        return wrap(tensor, *more)

    return telling


_LANDING = "_sluiceway_land"  # The attribute of a parameter in flight that says whom to ask.

_ATTRIBUTES = (
    *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "names"),
    *("is_leaf", "grad_fn", "requires_grad", "retains_grad", "output_nr", "_version", "_base"),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn"),
    *("is_xpu", "is_mps", "is_xla", "is_ipu", "is_vulkan", "is_maia", "is_mtia", "is_sparse_csr"),
    *("grad", "_grad", "grad_dtype", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
_METHODS = (
    *("size", "dim", "numel", "nelement", "stride", "storage_offset", "element_size", "__len__"),
    *(
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_inference",
        "get_device",
    ),
    *("requires_grad_", "retain_grad", "register_hook", "register_post_accumulate_grad_hook"),
    *("zeros_like", "empty_like", "ones_like", "new_zeros", "new_empty", "new_ones", "new_full"),
)


def _functions_that_only_look() -> frozenset[Any]:
    found: set[Any] = set()
    for name in _ATTRIBUTES:
        attribute = getattr(torch.Tensor, name, None)  # Not every torch has all of them.
        found |= {getattr(attribute, "__get__", None), getattr(attribute, "__set__", None)}
    for owner in (torch.Tensor, torch):
        found |= {getattr(owner, name, None) for name in _METHODS}
    return frozenset(found - {None}) | {torch.Tensor.grad.__delete__}


_LOOKS = _functions_that_only_look()
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
    """What a parameter's class has in front of its own while an update is in flight."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        _land_those_in((args, kwargs))
        return func(*args, **kwargs)

    def as_subclass(self, kind: type) -> Any:
        getattr(self, _LANDING)()  # torch does not ask.
        return self.as_subclass(kind)

    def detach(self) -> Any:
        getattr(self, _LANDING)()
        if sys._getframe(1).f_code is _MAKES_PARAMETERS:  # Wants the class that there was.
            return torch.Tensor._make_subclass(type(self), self)
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
        tell_before_wrapping(_land_those_in)

    def forked(self) -> bool:
        """Whether this is a child of the process whose lanes apply updates."""
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
