"""The sentinel's tensor: it answers for one norm of all compressed gradients, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from sluiceway.errors import Unavailable


class SentinelGradient(torch.Tensor):
    """A gradient whose 2-norm is true of all compressed gradients together, and no other norm.

    Operations give plain tensors, but for those that only look at it another way.
    """

    # What takes a norm, and where its order stands among the arguments. Without one it is 2.
    _NORMS: ClassVar[dict[str, int]] = {
        "linalg_vector_norm": 1,
        "linalg_norm": 1,
        "norm": 1,
        "_foreach_norm": 1,
    }
    _LOOKS = frozenset(
        ("detach", "float", "double", "to", "clone", "view", "reshape", "flatten", "ravel")
    )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Refuse norms that the two elements of a sentinel cannot carry."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in cls._NORMS:
            _check_order(name, _order(args, kwargs, cls._NORMS[name]))
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if name in cls._LOOKS and isinstance(result, torch.Tensor):
            return result.as_subclass(cls)
        return result


def _order(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Any:
    if len(args) > place:
        return args[place]
    return kwargs.get("ord", kwargs.get("p"))


def _check_order(function: str, order: Any) -> None:
    if order is None or order == "fro" or float(order) == 2:
        return
    raise Unavailable(
        f"{function}: a norm of order {order} was asked of compressed gradients, whose .grad "
        "knows only that of order 2; use opt.clip_grad_norm_(max_norm, norm_type), which has 2 and "
        "inf"
    )


class _NoGraph(torch.autograd.Function):
    """Gradients of gradients are not here: passes values through, and refuses to be derived."""

    @staticmethod
    def forward(_ctx: Any, values: torch.Tensor, _anchor: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_ctx: Any, *_: torch.Tensor) -> Any:
        raise Unavailable(
            "backward: a loss was made of .grad after backward(create_graph=True), but .grad of "
            "compressed weights has no graph, expected a loss without it; use "
            "torch.autograd.grad(loss, parameters, create_graph=True), which gives every gradient"
        )


def refusing_graph(values: torch.Tensor) -> torch.Tensor:
    """A copy of `values` that looks as if it could be differentiated, and raises where it is."""
    with torch.enable_grad():
        anchor = torch.zeros((), device=values.device, requires_grad=True)
        return _NoGraph.apply(values, anchor).as_subclass(SentinelGradient)
