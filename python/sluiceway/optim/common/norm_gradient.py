"""The tensor in `.grad` of a compressed weight: it has the gradient's norm in place of its values.

A compressed gradient leaves the device during backward. In its place is a tensor of the weight's
shape without values of its own. It has two numbers: the norm of the gradient, and the factor by
which code has scaled it since. torch asks its class before any function gets it, so norms and
scaling use these two numbers, and a function that needs the values raises.

    norm of order 2, isfinite, isnan   answered from the norm
    mul, div, neg, zero_, a scaler     change both numbers
    detach, clone, view, to            another one of the same gradient
    squares, cat, stack, print         read zeros, and one element that is the norm
    anything else                      Unavailable
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sluiceway.errors import Unavailable
from sluiceway.optim.common import torch_private

# Names of torch's functions that take a norm, with the position of the order in the arguments.
_NORMS = {"linalg_vector_norm": 1, "linalg_norm": 1, "norm": 1, "_foreach_norm": 1}
_SCALES = frozenset(
    (
        *("mul", "multiply", "imul", "rmul", "foreach_mul", "neg", "negative", "foreach_neg"),
        *("div", "divide", "true_divide", "truediv", "itruediv", "idiv", "foreach_div"),
        *("zero", "foreach_zero", "amp_foreach_non_finite_check_and_unscale"),
    )
)
_ASKS = frozenset(("isfinite", "isnan", "isinf"))
_SAME = frozenset(("detach", "view", "reshape", "flatten", "ravel", "view_as"))
_CAST = frozenset(("clone", "to", "float", "double", "half", "bfloat16", "cpu", "cuda", "type"))
_LOOKS_AT_SHAPE = frozenset(
    ("untyped_storage", "is_same_size", "result_type", "_has_compatible_shallow_copy_type")
)
# Functions whose result has the gradient's norm, and functions that show a tensor.
_READS = frozenset(
    (
        *("pow", "square", "mul", "cat", "concat", "concatenate", "stack", "hstack", "dot", "vdot"),
        *("repr", "format", "str", "reduce_ex", "tolist", "numpy", "array", "equal", "allclose"),
    )
)
_EDITING_OPERATORS = frozenset(
    (
        *("__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__"),
        *("__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__setitem__", "__set__"),
    )
)


class Generation:
    """The norms of one backward, of all weights that have a gradient.

    `cells` has a row for each weight: the norm, and the factor since. `write` writes the norms into
    the rows when code first reads them; it is None if they are written. It must not hold the
    optimizer, as every kept `.grad` holds `write`.
    """

    def __init__(self, cells: torch.Tensor, write: Callable[[Generation], None] | None) -> None:
        self.cells, self.write = cells, write
        self.are_large = False  # The square of a norm leaves the range of float32.
        self.was_unscaled = False  # By a GradScaler.

    def read(self) -> None:
        """Write the norms unless they are written."""
        if self.write is not None:
            self.write(self)  # If it raises, the next read tries again.
            self.write = None


class NormGradient(torch.Tensor):
    """Has the shape and the norm of a compressed gradient, and no values."""

    number: int  # Number of the weight.
    generation: Generation
    row: int  # The gradient's row of the generation's cells.
    of_graph: bool  # The backward was called with create_graph=True.
    own_cell: torch.Tensor | None = None  # In place of that row, for a scaled copy.

    @classmethod
    def of(cls, zeros: torch.Tensor, attributes: dict[str, Any]) -> NormGradient:
        """Make a tensor of this class with the storage, shape and dtype of `zeros`."""
        made = torch_private.of_class(cls, zeros)
        made.__dict__ = attributes
        return made

    @property
    def cell(self) -> torch.Tensor:
        """The norm, and the factor on it since."""
        if self.own_cell is not None:
            return self.own_cell
        # Detached, so that a factor that requires a gradient does not give one to all the cells.
        return self.generation.cells.detach()[self.row]

    def like(self, values: torch.Tensor, own_cell: torch.Tensor | None = None) -> NormGradient:
        """Make another NormGradient for this gradient, with shape and dtype of `values`.

        It has the same norm and factor, unless `own_cell` is given.
        """
        zero = values.detach().as_strided((), ()) if values.numel() else values.new_zeros(())
        changed = {} if own_cell is None else {"own_cell": own_cell}
        return self.of(zero.expand(values.shape), {**self.__dict__, **changed})

    def __deepcopy__(self, memo: dict[int, Any]) -> NormGradient:
        memo[id(self)] = copied = self.clone()
        return copied

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer from the norm, or raise."""
        kwargs = kwargs or {}
        with torch_private.asking_no_class():
            name = getattr(func, "__name__", "")
            if func in torch_private.LOOKS or name in _LOOKS_AT_SHAPE:
                return func(*args, **kwargs)
            ours = list(_of_norms([*args, *kwargs.values()]))
            if not ours:
                return func(*args, **kwargs)
            if func == torch.Tensor.data.__get__:
                return ours[0].like(ours[0])
            if func == torch.Tensor.data.__set__ and isinstance(args[1], cls):
                return func(*args)  # A module that is converted, or moved.
            for each in ours:
                each.generation.read()
            return _answer(func, args, kwargs, ours[0])

    def values(self) -> torch.Tensor:
        """Return zeros with one element that is the norm, for functions that read values."""
        values = torch.zeros(self.shape, dtype=torch.float32, device=self.device)
        if values.numel():
            values.view(-1)[0] = self.cell[0]
        return _refusing_graph(values) if self.of_graph else values


def _of_norms(values: Iterable[Any]) -> Iterable[NormGradient]:
    for value in values:
        if isinstance(value, NormGradient):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _of_norms(value)


def _swapped(value: Any, change: Callable[[NormGradient], torch.Tensor]) -> Any:
    """Return `value` with each NormGradient in it replaced by `change` of it."""
    if isinstance(value, NormGradient):
        return change(value)
    if isinstance(value, dict):
        return {key: _swapped(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [_swapped(each, change) for each in value]
    return value


def _scalar(value: Any) -> Any:
    """Return a factor in a shape that torch can multiply with a row of two numbers."""
    plain = isinstance(value, torch.Tensor) and not isinstance(value, NormGradient)
    return value.reshape(()) if plain and value.numel() == 1 and value.dim() else value


def _answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ours: NormGradient) -> Any:
    name = getattr(func, "__name__", "")
    plain = name.strip("_")
    in_place = name in _EDITING_OPERATORS or (name.endswith("_") and not name.endswith("__"))
    edits = in_place or "out" in kwargs
    if name in _NORMS:
        _check_order(name, args, ours, kwargs)
        return func(*_swapped(args, _norm), **_swapped(kwargs, _norm))
    if plain in _SCALES and _is_scaling(plain, args, kwargs):
        return _scaled(func, args, kwargs, in_place)
    if plain in _ASKS:
        return func(ours.cell[0]).expand(ours.shape)
    if name in ("contiguous", "detach_") and args[0] is ours:
        return ours
    if name in _SAME and args and args[0] is ours:
        return ours.like(func(ours, *args[1:], **kwargs))
    if name in _CAST and args and args[0] is ours:
        kwargs = {key: value for key, value in kwargs.items() if key != "memory_format"}
        moved = func(ours.as_strided((), ()), *map(_scalar, args[1:]), **kwargs)
        if not isinstance(moved, torch.Tensor):
            return moved  # The name of its type.
        return ours.like(moved.expand(ours.shape), ours.cell.to(moved.device, copy=True))
    others = (value for value in [*args, *kwargs.values()] if not isinstance(value, NormGradient))
    combines = any(isinstance(value, torch.Tensor) and value.numel() > 1 for value in others)
    if edits or combines or plain not in _READS or not _keeps_norm(plain, args):
        raise Unavailable(
            f"{name}: the values of a compressed gradient were to be read, edited or combined with "
            "another tensor (the weight, a mask, noise), but its .grad has the norm and not the "
            "values. Take norms of order 2; clip by norm, not by value; see and edit gradients in "
            "register_hook(), or take them from torch.autograd.grad(loss, parameters)"
        )
    return func(*_swapped(args, NormGradient.values), **_swapped(kwargs, NormGradient.values))


def _keeps_norm(plain: str, args: tuple[Any, ...]) -> bool:
    """Return whether a product or power squares one gradient."""
    if plain == "pow":
        return len(args) == 2 and args[1] == 2
    if plain not in ("mul", "dot", "vdot"):
        return True
    return len({_cell_of(one) if isinstance(one, NormGradient) else id(one) for one in args}) == 1


def _cell_of(ours: NormGradient) -> tuple[int, int, int]:
    """Return what two NormGradients have in common if they have one cell."""
    return id(ours.generation), ours.row, id(ours.own_cell)


def _norm(ours: NormGradient) -> torch.Tensor:
    norm = ours.cell[:1]
    if ours.generation.are_large:
        norm = norm.square().sqrt()  # Infinite, like the norm of an ordinary gradient.
    return _refusing_graph(norm) if ours.of_graph else norm


def _is_scaling(plain: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether all other arguments are numbers or tensors of one element."""
    if not args or kwargs.get("rounding_mode") is not None or "out" in kwargs:
        return False
    first, *rest = [*args, *kwargs.values()]
    divides = plain in ("div", "divide", "true_divide", "truediv")
    if isinstance(first, torch.Tensor) and not isinstance(first, NormGradient):
        # A factor that stands before the gradient.
        return first.numel() == 1 and not divides and len(rest) == 1
    return all(_is_factor(each) for each in rest)


def _is_factor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_factor, value))
    if isinstance(value, torch.Tensor):
        return not isinstance(value, NormGradient) and value.numel() == 1
    return True


def _scaled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], in_place: bool) -> Any:
    given = [_scalar(value) for value in _swapped(args, lambda ours: ours.cell)]
    if getattr(func, "__name__", "").startswith("_amp_"):  # GradScaler's function.
        given[1:] = args[1:]  # Its tensors of one element keep their shapes.
        for ours in _of_norms(args):
            ours.generation.was_unscaled = True
    result = func(*given, **{key: _scalar(value) for key, value in kwargs.items()})
    if in_place:
        return args[0]
    if isinstance(result, torch.Tensor):
        ours = next(iter(_of_norms(args)))
        return ours.like(ours, result)
    return [
        one.like(one, cell) if isinstance(one, NormGradient) else cell
        for one, cell in zip(args[0], result, strict=True)
    ]


def _check_order(
    function: str, args: tuple[Any, ...], ours: NormGradient, kwargs: dict[str, Any]
) -> None:
    place = _NORMS[function]
    order = args[place] if len(args) > place else kwargs.get("ord", kwargs.get("p"))
    is_matrix_norm = function == "linalg_norm" and order is not None and ours.dim() == 2
    if kwargs.get("dim") is None and (order is None or order == "fro"):
        return
    is_two = not isinstance(order, str) and order is not None and float(order) == 2
    if is_two and kwargs.get("dim") is None and not is_matrix_norm:
        return
    raise Unavailable(
        f"{function}: a norm of order {order} was asked of a compressed gradient, whose .grad "
        "knows only the norm of order 2 of all its elements; use opt.clip_grad_norm_(max_norm, "
        "norm_type), which has 2 and inf"
    )


class _NoGraph(torch.autograd.Function):
    """Passes values through, and raises if backward needs their gradient."""

    @staticmethod
    def forward(_ctx: Any, values: torch.Tensor, _anchor: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_ctx: Any, *_: torch.Tensor) -> Any:
        raise Unavailable(
            "backward: a loss was made of .grad after backward(create_graph=True), but .grad of "
            "compressed weights has no graph; use torch.autograd.grad(loss, parameters, "
            "create_graph=True), which gives every gradient"
        )


def _refusing_graph(values: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return _NoGraph.apply(values, torch.zeros((), device=values.device, requires_grad=True))
