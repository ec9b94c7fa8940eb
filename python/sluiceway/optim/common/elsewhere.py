"""Parameters whose own memory does not hold the trained weights between two forwards.

Such a parameter has a class of its own, and torch asks that class before any function gets the
parameter. A function that reads only the shape or the like runs. One that reads or writes elements
raises InvalidArgument, unless the keeper of the weights can bring them into that memory. A copy
(`copy.deepcopy(model)`, pickle, `torch.save(model)`) has the trained weights.

Code that bypasses torch's function protocol, for example TorchScript, is not checked.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private

_TENSORS = ("data", "T", "mT", "H", "mH", "real", "imag")
_NO_READS = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "data_ptr",
    "is_contiguous", "is_floating_point", "is_complex", "is_pinned", "get_device", "requires_grad_",
    "storage_offset", "type", "__hash__", "__len__", "__repr__", "__format__", "__set__",
}  # fmt: skip
# These return the tensor itself if it already has the type and the device.
_CONVERSIONS = {
    *("to", "type", "type_as", "cpu", "cuda", "float", "double", "half", "bfloat16", "contiguous"),
}
_LOOKS = {"_has_compatible_shallow_copy_type", "_is_view"}  # In addition to torch_private.LOOKS.
_KEEPER = "_sluiceway_keeper"  # Attribute of such a parameter that leads to its weights.
_SAVES = nn.Module._save_to_state_dict.__code__  # A hook of the module inserts theta afterwards.


class Keeper(Protocol):
    """Holder of the trained weights of such parameters."""

    fills_state_dict: bool  # A hook puts them into `state_dict()`, so no parameter is read for it.

    @property
    def owner(self) -> str:
        """The optimizer's name, for errors."""

    def name_of(self, p: nn.Parameter) -> str:
        """The parameter's name in the model."""

    def refresh(self, p: nn.Parameter) -> bool:
        """Bring the parameter's own memory up to date if possible; tell whether it is."""

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Return a copy of a parameter's trained weights in host memory."""


def absent(p: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return NaN in a parameter's shape but with one element of memory, for an absent weight."""
    return torch.full((), torch.nan, dtype=p.dtype, device=device).expand(p.shape)


def keeper_of(p: torch.Tensor) -> Any:
    """Return the keeper of a parameter whose weights are elsewhere; None if there is none."""
    return getattr(p, _KEEPER)() if isinstance(p, _Elsewhere) else None


def is_no_read(func: Any) -> bool:
    """Tell whether a function of torch reads no elements of its arguments."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") not in _TENSORS
    return name in _NO_READS


def _check(value: Any) -> None:
    if isinstance(value, _Elsewhere):
        value._sluiceway_check()


class _Elsewhere:
    """Base class that such a parameter's class has before its original class."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        converts = name in _CONVERSIONS
        if not (converts or name in _LOOKS or is_no_read(func) or func in torch_private.LOOKS):
            for leaf in tree_leaves((args, kwargs)):
                _check(leaf)
        with torch_private.asking_no_class():
            result = func(*args, **kwargs)
        if converts and isinstance(result, torch.Tensor) and result is not args[0]:
            _check(args[0])  # The call converted the tensor, so it read the elements.
            with torch_private.asking_no_class():
                return func(*args, **kwargs)
        return result

    def _sluiceway_check(self) -> None:
        keeper = getattr(self, _KEEPER)()
        if keeper is None or not torch_private.classes_are_asked():
            return  # The optimizer was dropped without close(), or its own code reads.
        if keeper.refresh(self):
            return
        raise InvalidArgument(
            f"{keeper.owner}: {keeper.name_of(self)} is read or written outside of a forward, "
            "while its own memory does not hold the trained weights; read opt.theta(parameter), "
            "model.state_dict() or copy.deepcopy(model), or close() the optimizer first"
        )

    def _sluiceway_copy(self) -> nn.Parameter:
        keeper, kind = getattr(self, _KEEPER)(), type(self).landed
        with torch_private.asking_no_class():
            theta = self.detach().clone() if keeper is None else keeper.theta_on_host(self)
            return kind(theta, self.requires_grad)

    def as_subclass(self, kind: type) -> Any:
        self._sluiceway_check()  # torch does not call __torch_function__ here.
        if not isinstance(self, _Elsewhere):  # Its keeper has brought it for good.
            return self.as_subclass(kind)
        return super().as_subclass(kind)

    def detach(self) -> torch.Tensor:
        keeper = getattr(self, _KEEPER)()
        filled = keeper is not None and keeper.fills_state_dict
        if not (filled and sys._getframe(1).f_code is _SAVES):
            self._sluiceway_check()
        with torch_private.asking_no_class():
            return super().detach() if isinstance(self, _Elsewhere) else self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        copy = memo[id(self)] = self._sluiceway_copy()
        return copy

    def __reduce_ex__(self, protocol: int) -> Any:
        return self._sluiceway_copy().__reduce_ex__(protocol)

    def __repr__(self, **kwargs: Any) -> str:
        return self._sluiceway_copy().__repr__(**kwargs)


@functools.cache
def _class_elsewhere(landed: type) -> type:
    return type(landed.__name__, (_Elsewhere, landed), {"landed": landed})


class WeightsElsewhere:
    """Guards parameters against reads, and lifts the guard while other code exchanges their data.

    Parameters
    ----------
    keeper : Keeper
        Held weakly.
    parameters : list of torch.nn.Parameter
    """

    def __init__(self, keeper: Keeper, parameters: list[nn.Parameter]) -> None:
        self._keeper, self._parameters = weakref.ref(keeper), parameters
        torch_private.tell_before_wrapping(_check)
        self.take_out(parameters)

    def take_out(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every later read of these parameters raise InvalidArgument."""
        for p in parameters:
            setattr(p, _KEEPER, self._keeper)
            if not isinstance(p, _Elsewhere):
                p.__class__ = _class_elsewhere(type(p))

    def bring(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give these parameters their original class back."""
        for p in parameters:
            if isinstance(p, _Elsewhere):
                p.__class__ = type(p).landed
                delattr(p, _KEEPER)

    def bring_all(self) -> None:
        """Give all parameters their original class back."""
        self.bring(self._parameters)

    def take_out_all(self) -> None:
        """Make every later read of any parameter raise InvalidArgument."""
        self.take_out(self._parameters)
