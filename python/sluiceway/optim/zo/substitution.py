"""Passes perturbed weights that are not tensors to functions of torch, in place of parameters.

Such a matrix is known only by its products. The half keeps the parameter itself and runs its
closure inside of this mode. A function of torch that gets the parameter is computed with the
perturbed matrix instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_TENSORS = ("data", "T", "mT", "H", "mH", "real", "imag")
_NO_READS = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "data_ptr",
    "is_contiguous", "is_floating_point", "is_complex", "is_pinned", "get_device", "requires_grad_",
    "storage_offset", "type", "__hash__", "__len__", "__repr__", "__format__", "__set__",
}  # fmt: skip


class ImplicitMatrix(Protocol):
    """A matrix that is known by its products."""

    def product(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute a function of torch; NotImplemented if it needs the elements."""

    def materialise(self) -> torch.Tensor:
        """Compute the elements."""


class Substitution(TorchFunctionMode):
    """Replaces parameters in calls of torch's functions, in the thread that enters it.

    Parameters
    ----------
    find : callable
        Returns the matrix that replaces the object with this id, or None.
    """

    def __init__(self, find: Callable[[int], ImplicitMatrix | None]) -> None:
        super().__init__()
        self._find = find

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one of torch's functions, with perturbed matrices for parameters."""
        kwargs = kwargs or {}
        found: dict[int, ImplicitMatrix] = {}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and (matrix := self._find(id(leaf))) is not None:
                found[id(leaf)] = matrix
        if not found or is_no_read(func):
            return func(*args, **kwargs)
        if len(found) == 1:
            (matrix,) = found.values()
            result = matrix.product(func, args, kwargs)
            if result is not NotImplemented:
                return result
        whole = {key: matrix.materialise() for key, matrix in found.items()}
        args, kwargs = tree_map(lambda leaf: whole.get(id(leaf), leaf), (args, kwargs))
        return func(*args, **kwargs)


def is_no_read(func: Any) -> bool:
    """Tell whether a function of torch reads no elements of its arguments."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") not in _TENSORS
    return name in _NO_READS
