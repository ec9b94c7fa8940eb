"""Blocks of a model whose backward computes them again from their inputs.

A forward keeps the inputs of each block and nothing inside of it (activation checkpointing, one
block at a time) [Chen et al., arXiv 1604.06174].
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from sluiceway.errors import InvalidArgument
from sluiceway.model.blocks import find_blocks
from sluiceway.optim.common.activations import Activations
from sluiceway.optim.common.batch_parts import refuse_sequence_first
from sluiceway.optim.common.block_call import BlockCall
from sluiceway.optim.common.other_class import OtherClass, give_class_back, take_class


class RepeatedBlocks:
    """Makes each backward of some blocks compute the block again.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    modules : sequence of torch.nn.Module
        The blocks, in the model's order.
    trained : list of torch.nn.Parameter
        The weights whose gradients the optimizer takes, in the order of its hooks.
    activations : Activations, optional
        Where the blocks' inputs wait; by default on the device.
    micro_batches : int
        Parts of a batch, all of which pass through a block before the next block.

    Attributes
    ----------
    hooks : ModelHooks
        Set once they are on the model. `begin_backward`, `hold_back` and `take_left` are called.
    """

    hooks: Any

    def __init__(
        self,
        owner: str,
        modules: Sequence[nn.Module],
        trained: list[nn.Parameter],
        activations: Activations | None,
        micro_batches: int,
    ) -> None:
        self.owner, self._modules, self.activations = owner, modules, activations
        self.micro_batches = micro_batches
        self._calls: list[weakref.WeakSet[BlockCall]] = [weakref.WeakSet() for _ in modules]
        self._dropped: list[weakref.WeakSet[Any]] = [weakref.WeakSet() for _ in modules]  # Caches.
        index_of = {id(p): i for i, p in enumerate(trained)}
        self._trained = [
            [index_of[id(p)] for p in module.parameters() if id(p) in index_of]
            for module in modules
        ]
        self._anchor = torch.zeros((), requires_grad=True)
        self._process = os.getpid()
        self._repeats = False

    def start(self) -> None:
        """Let the blocks be computed again from now on; idempotent."""
        if self._repeats:
            return
        for number, module in enumerate(self._modules):
            take_class(
                module, RepeatedBlock, sluiceway_around=staticmethod(partial(self._call, number))
            )
        self._repeats = True

    def give_back(self) -> None:
        """Undo `start()`; idempotent."""
        for module in self._modules if self._repeats else ():
            give_class_back(module, RepeatedBlock)
        self._repeats = False
        self.activations = None  # Graphs that still need it have it.

    # ---- Calls of blocks ----

    def _call(self, number: int, forward: Any, *arguments: Any, **named: Any) -> Any:
        """Run a block; the gradients of its backward come from a repetition of its forward."""
        module = self._modules[number]
        given = (*arguments, *named.values())
        self._refuse_dropped(number, module, given)
        if not (torch.is_grad_enabled() and _trains(module, given)):
            with self.held(number, False):
                return tree_map(self.apart, forward(*arguments, **named))
        arguments, named = self._without_caches(number, module, arguments, named)
        call = BlockCall(self, number, forward, arguments, named)
        self._calls[number].add(call)
        return call.result(self._anchor)

    # What a call of a block needs.

    @contextmanager
    def held(self, block: int, backward: bool) -> Iterator[None]:
        """Hold what a block needs while it computes."""
        self._refuse_fork()
        if backward:
            self._begin_backward()
        yield

    def hold_back(self, block: int, more: bool) -> None:
        """Let a block's gradients add up on the device, if its backward is not its last one.

        So a block that runs several times, or in parts, has one gradient in a backward, as without
        repetition. `more` parts of a call come in any case.
        """
        if self._repeats:
            again = more or any(call.is_due() for call in self._calls[block])
            self.hooks.hold_back(self._trained[block], again)

    def end_parts(self, block: int) -> None:
        """Take the gradients of weights that the last part of a call did not use."""
        if self._repeats:
            self.hooks.take_left(self._trained[block])

    def apart(self, value: Any) -> Any:
        """Return a value that may be read after `held()`."""
        return value

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                f"{self.owner}: process {os.getpid()} is a forked child and has no lanes that "
                "fetch weights; run the model in the process that made the optimizer"
            )

    def _begin_backward(self) -> None:
        if self._repeats:  # A backward may come after close().
            self.hooks.begin_backward(0)  # Otherwise the repetition's backward opens one.

    # ---- Caches of keys and values ----

    def _without_caches(
        self, number: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Leave out empty caches of keys and values, to which a repetition would add again."""

        def without(value: Any) -> Any:
            if not _is_cache(value):
                return value
            if value.get_seq_length() > 0:
                raise InvalidArgument(
                    f"{self.owner}: {type(module).__name__} gets a cache of keys and values while "
                    "gradients are enabled, but its backward computes it again and would add to "
                    "the cache twice; call the model under torch.no_grad(), or without the cache"
                )
            self._dropped[number].add(value)
            return None

        named = {key: without(value) for key, value in named.items()}
        if named.get("use_cache"):
            named["use_cache"] = False
        return tuple(without(value) for value in arguments), named

    def _refuse_dropped(self, number: int, module: nn.Module, given: tuple[Any, ...]) -> None:
        for value in given:
            if _is_cache(value) and value in self._dropped[number]:
                raise InvalidArgument(
                    f"{self.owner}: {type(module).__name__} gets a cache that an earlier forward "
                    "with gradients has left empty; make that forward under torch.no_grad()"
                )


class _NoHooks:
    """Marks the parameters whose gradients are held back, for a rehearsal."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters

    def begin_backward(self, weight: int) -> None:
        """Begin nothing."""

    def hold_back(self, weights: Iterable[int], held: bool) -> None:
        for index in weights:
            self._parameters[index].held_back = held

    def take_left(self, weights: Iterable[int]) -> None:
        """Take nothing: every part of a rehearsal uses the same weights."""


def repeat_in_parts(model: nn.Module, micro_batches: int) -> None:
    """Divide the batches of a model's blocks, as an optimizer does, for good.

    Gradients are held back by an attribute `held_back` of their parameters.
    """
    modules = [block for _, block in find_blocks("plan", model).blocks]
    refuse_sequence_first("plan", modules)
    parameters = list(model.parameters())
    blocks = RepeatedBlocks("plan", modules, parameters, None, micro_batches)
    blocks.hooks = _NoHooks(parameters)
    blocks.start()


def refuse_repeated(owner: str, model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Refuse blocks that another open optimizer computes again, and losses that they leave behind.

    Raises
    ------
    InvalidArgument
        The text says what to do.
    """
    if getattr(getattr(model, "config", None), "output_router_logits", False):
        raise InvalidArgument(
            f"{owner}: the model's config has output_router_logits, but the routers' loss has no "
            "gradient where a backward computes blocks again; set it to False, or train with "
            "weights='resident' and activations='device'"
        )
    if any(isinstance(module, RepeatedBlock) for module in modules):
        raise InvalidArgument(
            f"{owner}: another open optimizer streams the weights or the activations of this "
            "model's blocks; close() that one first, or train with weights='resident' and "
            "activations='device'"
        )


def _trains(module: nn.Module, given: tuple[Any, ...]) -> bool:
    """Tell whether a backward goes through a block that is called with these arguments."""
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    return any(t.requires_grad for t in (*tensors, *module.parameters()))


def _is_cache(value: Any) -> bool:
    """Tell whether a value is a cache of keys and values of transformers."""
    return any(kind.__name__ == "Cache" for kind in type(value).__mro__) and hasattr(
        value, "get_seq_length"
    )


class RepeatedBlock(OtherClass):
    """Base class that a repeated block's class has before the block's original class."""

    sluiceway_around: ClassVar[Any]

    @torch.compiler.disable
    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the original forward, and once more in the backward."""
        return type(self).sluiceway_around(super().forward, *arguments, **named)

    # The block is computed again in any case: transformers' checkpointing would do so twice.
    @property
    def gradient_checkpointing(self) -> bool:
        """Always False while the block is repeated."""
        return False

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.__dict__["gradient_checkpointing"] = value  # It counts once the optimizer is closed.
