"""One call of a block whose backward computes the block again.

The forward keeps the block's inputs and no activation inside of it. The backward repeats the
forward with the same random numbers and the same autocast, and runs through that graph. If weights
are streamed, each weight's gradient so comes while the weight is on the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.activations import Activations
from sluiceway.optim.common.random_state import RandomState


class BlockCall:
    """The arguments of one call, and what its repetition needs beside them.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    forward : callable
        The block's own forward.
    arguments, named
        What it was called with.
    held : callable
        Returns a context in which the block can compute; gets whether it is a backward.
    apart : callable
        Returns a value that may be read after that context.
    activations : Activations, optional
        Where the inputs wait for the backward; by default on the device.
    """

    def __init__(
        self,
        owner: str,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        held: Callable[[bool], AbstractContextManager[None]],
        apart: Callable[[Any], Any],
        activations: Activations | None,
    ) -> None:
        self.owner, self.held = owner, held
        self._forward, self._apart, self._activations = forward, apart, activations
        self._first: Any = (arguments, named)  # Containers as the caller has them.
        leaves, self._tree = tree_flatten((arguments, named))
        self._inputs, self._others = _split(leaves)
        self._random = RandomState.now()
        self.node: Any = None  # Autograd's node of this call, held weakly.
        self._repeated_in = torch_private.NO_BACKWARD  # The last backward that repeated it.
        self._autocast = _autocast_now(self._inputs)

    def result(self, anchor: torch.Tensor) -> Any:
        """Run the forward; what it returns has a graph whose backward repeats it.

        `anchor` requires a gradient, so that there is a backward even if no input requires one.
        """
        inputs, self._inputs = self._inputs, []
        self._made: tuple[list[Any], Any] = ([], None)
        away = nullcontext() if self._activations is None else self._activations.saving(inputs)
        with away:
            tensors = _Repeated.apply(self, anchor, *inputs)
        others, tree = self._made
        return tree_unflatten(_joined(tensors, others), tree)

    def is_due(self) -> bool:
        """Tell whether the running backward has yet to repeat this call."""
        node = None if self.node is None else self.node()
        if node is None or self._repeated_in == torch_private.running_backward():
            return False
        return torch_private.backward_reaches(node)

    def first(self) -> list[torch.Tensor]:
        """Call the block with what the caller has given, and return the tensors of its result."""
        given, self._first = self._first, None
        return [self._apart(tensor) for tensor in self._run(given)]

    def run(self, inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Call the block again, with other tensors in place of its arguments'."""
        return self._run(tree_unflatten(_joined(inputs, self._others), self._tree))

    def _run(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> list[torch.Tensor]:
        arguments, named = given
        with self._autocast():
            leaves, tree = tree_flatten(self._forward(*arguments, **named))
        tensors, others = _split(leaves)
        self._made = others, tree
        return tensors

    def repeat(
        self, inputs: list[torch.Tensor], gradients: tuple[torch.Tensor | None, ...]
    ) -> None:
        """Add to `.grad` of the inputs and of the block's parameters."""
        self._repeated_in = torch_private.running_backward()
        with self.held(True):
            now = RandomState.now()
            self._random.restore()
            try:
                with torch.enable_grad():
                    outputs = self.run(inputs)
            finally:
                now.restore()
            reached = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            if reached:
                torch.autograd.backward(*map(list, zip(*reached, strict=True)))


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: BlockCall, anchor: torch.Tensor, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.call, call.node = call, weakref.ref(ctx)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        with call.held(False):
            outputs = call.first()
        ctx.mark_non_differentiable(*[t for t in outputs if not _has_gradient(t)])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if not torch_private.may_run_backward_inside():
            raise InvalidArgument(
                f"{ctx.call.owner}: torch.autograd.grad() and backward(inputs=...) do not go "
                "through blocks that their backward computes again; call loss.backward(), or train "
                "with weights='resident' and activations='device'"
            )
        needs = ctx.needs_input_grad[2:]
        inputs = [
            t.detach().requires_grad_(needed)
            for t, needed in zip(ctx.saved_tensors, needs, strict=True)
        ]
        ctx.call.repeat(inputs, gradients)
        return None, None, *[t.grad for t in inputs]


_TENSOR = object()  # Stands for a tensor in a list of leaves.


def _split(leaves: list[Any]) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the tensors among some leaves, and the leaves with a mark for each of them."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return tensors, [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _joined(tensors: Iterable[torch.Tensor], others: list[Any]) -> list[Any]:
    """Undo `_split`."""
    given = iter(tensors)
    return [next(given) if leaf is _TENSOR else leaf for leaf in others]


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _autocast_now(inputs: list[torch.Tensor]) -> Callable[[], AbstractContextManager[None]]:
    """Return a context that sets autocast as it is now, but without its cache of cast weights.

    The cache would hold a copy of each weight beyond its turn.
    """
    kinds = sorted({"cpu", *(t.device.type for t in inputs)})
    settings = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds
    ]

    @contextmanager
    def context() -> Iterator[None]:
        with ExitStack() as stack:
            for kind, dtype, enabled in settings:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
            yield

    return context
