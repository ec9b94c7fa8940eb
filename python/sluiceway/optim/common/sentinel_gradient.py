"""The sentinel's tensor: it answers for one norm of all compressed gradients, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from sluiceway.errors import Unavailable


class SentinelGradient(torch.Tensor):
    """A gradient whose 2-norm is true of all compressed gradients together, and no other norm.

    What is computed from it element by element, or looks at it another way, is one too; anything
    else is a plain tensor. None of them meets the weight: of the others there is no gradient.
    """

    weight_at = 0  # Where the values of its parameter begin.
    unread: Callable[[], None] | None = None  # Writes its values before anybody looks at them.
    void = False  # They were never written, and what they stood for is gone; or made from such.

    def __deepcopy__(self, memo: dict[int, Any]) -> SentinelGradient:
        memo[id(self)] = copied = self.clone()
        return copied

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
        """Refuse norms that a sentinel cannot carry, and what needs the gradient itself."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in cls._NORMS:
            _check_order(name, _order(args, kwargs, cls._NORMS[name]))
        with torch._C.DisableTorchFunctionSubclass():
            given = list(_tensors_in([*args, *kwargs.values()]))
            for each in given:
                if isinstance(each, cls):
                    each.read()
            ours = next((t for t in given if isinstance(t, cls)), None)
            if ours is None:
                return func(*args, **kwargs)
            _check_weight(name, given, ours.weight_at)
            result = func(*args, **kwargs)
            if isinstance(result, (list, tuple)) and type(result) in (list, tuple):
                return type(result)(cls._derived(each, name, ours, given) for each in result)
            return cls._derived(result, name, ours, given)

    def read(self) -> None:
        """Somebody looks at it: from now on its values stand."""
        if self.unread is not None:
            self.unread()  # If it raises, whoever looks next asks again.
            self.unread = None

    @classmethod
    def of(cls, values: torch.Tensor, weight_at: int) -> SentinelGradient:
        """`values` as the sentinel of a parameter; their graph is kept."""
        known = values.requires_grad
        result = values.as_subclass(cls) if known else torch.Tensor._make_subclass(cls, values)
        result.weight_at = weight_at
        return result

    @classmethod
    def _derived(
        cls, result: Any, name: str, ours: SentinelGradient, given: list[torch.Tensor]
    ) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        if all(result is not each for each in given):
            alike = result.shape == ours.shape and result.is_floating_point()
            result = cls.of(result, ours.weight_at) if alike or name in cls._LOOKS else result
        if isinstance(result, cls):
            result.void = any(isinstance(each, cls) and each.void for each in given)
        return result


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)


def _check_weight(function: str, given: list[torch.Tensor], weight_at: int) -> None:
    for tensor in given:
        if (
            not isinstance(tensor, SentinelGradient)
            and tensor.layout is torch.strided
            and tensor.data_ptr() == weight_at
        ):
            raise Unavailable(
                f"{function}: a compressed weight was to be combined with its .grad (SAM, steps or "
                "decay by hand, importance scores), which stands for the norm of all gradients "
                "alone, expected the gradient to be left to the optimizer; use "
                "torch.autograd.grad(loss, parameters), which gives every gradient"
            )


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
        return _NoGraph.apply(values, anchor)
