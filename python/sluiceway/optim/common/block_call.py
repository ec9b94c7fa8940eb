"""One call of a block whose backward computes the block again.

The forward keeps the block's inputs and no activation inside of it. The backward repeats the
forward with the same random numbers and the same autocast, and runs through that graph. If weights
are streamed, each weight's gradient so comes while the weight is on the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.batch_parts import BatchParts
from sluiceway.optim.common.random_state import RandomState

if TYPE_CHECKING:
    from sluiceway.optim.common.repeated_blocks import RepeatedBlocks


class BlockCall:
    """The arguments of one call, and what its repetition needs beside them.

    Parameters
    ----------
    home : RepeatedBlocks
    number : int
        The block's number there.
    forward : callable
        The block's own forward.
    arguments, named
        What it was called with.
    """

    def __init__(
        self,
        home: RepeatedBlocks,
        number: int,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.home, self.number, self._forward = home, number, forward
        self._first: Any = (arguments, named)  # Containers as the caller has them.
        leaves, self._tree = tree_flatten((arguments, named))
        self._inputs, self._others = _split(leaves)
        others = [other for other in self._others if other is not _TENSOR]
        _refuse_shared(home.owner, others)
        self._parts = BatchParts(home.owner, self._inputs, others, home.micro_batches)
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
        activations = self.home.activations
        with nullcontext() if activations is None else activations.saving(inputs):
            tensors = _Repeated.apply(self, anchor, *inputs)
        others, tree = self._made
        return tree_unflatten(_joined(tensors, others), tree)

    def is_due(self) -> bool:
        """Tell whether the running backward has yet to repeat this call."""
        node = None if self.node is None else self.node()
        if node is None or self._repeated_in == torch_private.running_backward():
            return False
        return torch_private.backward_reaches(node)

    def first(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the block with what the caller has given, and return the tensors of its result."""
        given, self._first = self._first, None
        if len(self._parts) == 1:
            return [self.home.apart(tensor) for tensor in self._run(given)]
        parts = [self._parts.of(inputs, number) for number in range(len(self._parts))]
        return self._parts.joined([self._run(self._containers(part)) for part in parts])

    def _containers(self, inputs: Iterable[torch.Tensor]) -> Any:
        """Put tensors in place of those of the arguments."""
        return tree_unflatten(_joined(inputs, self._others), self._tree)

    def _run(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> list[torch.Tensor]:
        arguments, named = given
        with self._autocast():
            leaves, tree = tree_flatten(self._forward(*arguments, **named))
        tensors, others = _split(leaves)
        self._made = others, tree
        return tensors

    def repeat(
        self,
        inputs: Sequence[torch.Tensor],
        needs: Sequence[bool],
        gradients: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """Add to `.grad` of the block's parameters; return the gradients of its inputs."""
        self._repeated_in = torch_private.running_backward()
        found = []
        with self.home.held(self.number, True):
            now, random, last = RandomState.now(), self._random, len(self._parts) - 1
            for part in range(len(self._parts)):
                self.home.hold_back(self.number, part < last)
                given = [
                    t.detach().requires_grad_(needed)
                    for t, needed in zip(self._parts.of(inputs, part), needs, strict=True)
                ]
                random.restore()
                try:
                    with torch.enable_grad():
                        outputs = self._run(self._containers(given))
                    if part < last:
                        random = RandomState.now()
                finally:
                    now.restore()
                _run_backward(outputs, self._parts.of_outputs(gradients, part))
                found.append([t.grad for t in given])
            if last > 0:
                self.home.end_parts(self.number)
        return self._parts.joined_gradients(inputs, found)


def _run_backward(
    outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> None:
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
        with call.home.held(call.number, False):
            outputs = call.first(inputs)
        ctx.mark_non_differentiable(*[t for t in outputs if not _has_gradient(t)])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if not torch_private.may_run_backward_inside():
            raise InvalidArgument(
                f"{ctx.call.home.owner}: torch.autograd.grad() and backward(inputs=...) do not go "
                "through blocks that their backward computes again; call loss.backward(), or train "
                "with weights='resident' and activations='device'"
            )
        needs = ctx.needs_input_grad[2:]
        return None, None, *ctx.call.repeat(ctx.saved_tensors, needs, gradients)


_TENSOR = object()  # Stands for a tensor in a list of leaves.


def _split(leaves: list[Any]) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the tensors among some leaves, and the leaves with a mark for each of them."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return tensors, [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _joined(tensors: Iterable[torch.Tensor], others: list[Any]) -> list[Any]:
    """Undo `_split`."""
    given = iter(tensors)
    return [next(given) if leaf is _TENSOR else leaf for leaf in others]


def _refuse_shared(owner: str, others: Iterable[Any]) -> None:
    """Refuse a dictionary in which blocks leave tensors for later ones, and their graphs with them.

    Autograd does not see it, and each block runs in a graph of its own.
    """
    for value in others:
        if isinstance(value, MutableMapping):
            raise InvalidArgument(
                f"{owner}: blocks share tensors in a {type(value).__name__}, through which no "
                "gradient would flow if their backward computes them again; train with "
                "weights='resident' and activations='device'"
            )


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
