"""Blocks of a model whose weights are in the store, and on the device only in their turn.

A turn is one forward of a block, or its repetition and backward.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from sluiceway import _core
from sluiceway.errors import Error, InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.model.blocks import find_blocks, weights_by_block
from sluiceway.model.targets import CompressedWeight, owners_of
from sluiceway.model.whole_weights import DTYPES, WholeWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import WeightsElsewhere
from sluiceway.optim.common.model_hooks import ModelHooks
from sluiceway.optim.common.other_class import OtherClass, give_class_back, take_class
from sluiceway.optim.offload.between_turns import BetweenTurns
from sluiceway.optim.offload.block_call import BlockCall
from sluiceway.optim.offload.cores import tensor_specs
from sluiceway.optim.offload.open_streamed import folder_of

_AHEAD = 1  # Blocks that are fetched while one computes.
Block = tuple[nn.Module, list[int]]  # Its module, and the numbers of its streamed weights.
Turn = tuple[int, bool]  # The number of a block, and whether it is its backward.


def choose_streamed(
    owner: str,
    model: nn.Module,
    trained: list[CompressedWeight],
    chunk_elements: int,
    room: int,
) -> tuple[list[Block], list[CompressedWeight]]:
    """Mark the weights to stream; return the blocks that are away, in the model's order.

    Returns also the streamed weights that are frozen, which the engine has after those that it
    trains.

    A weight is streamed if one block alone reads it and if it fills at least half a chunk, so that
    it shares none. Blocks stay on the device nevertheless, up to `room` bytes of such weights.

    Raises
    ------
    InvalidArgument
        The model has no blocks, or no such weight.
    """
    found = find_blocks(owner, model)
    if any(isinstance(module, _StreamedBlock) for _, module in found.blocks):
        raise InvalidArgument(
            f"{owner}: another open optimizer streams the blocks of this model; close() that one "
            "first, or train with weights='resident'"
        )
    block_of = {id(p): number for _, p, number in weights_by_block(model, found)}
    numbers: list[list[int]] = [[] for _ in found.blocks]
    frozen = _frozen_weights(model)
    for weight in (*trained, *frozen):
        block = block_of.get(id(weight.parameter))
        weight.streamed = block is not None and 2 * weight.parameter.numel() >= chunk_elements
    frozen = [weight for weight in frozen if weight.streamed]
    weights = [*trained, *frozen]
    for index, weight in enumerate(weights):
        if weight.streamed:
            numbers[block_of[id(weight.parameter)]].append(index)
    blocks = [(m, of) for (_, m), of in zip(found.blocks, numbers, strict=True) if of]
    if not blocks:
        raise InvalidArgument(
            f"{owner}: no block of {found.name or type(model).__name__} has a weight of at least "
            f"half a chunk, {chunk_elements // 2} elements, so none can be streamed; set a smaller "
            "chunk, or weights='resident'"
        )
    sizes = [sum(weights[i].parameter.nbytes for i in of) for _, of in blocks]
    stays = _core.choose_resident(sizes, room)
    for (_, of), is_resident in zip(blocks, stays, strict=True):
        for index in of:
            weights[index].resident = is_resident
    away = {id(weight.parameter) for weight in weights if weight.away}
    for p in model.parameters():
        if id(p) not in away and (folder := folder_of(p)):
            folder.refresh(p)
    away = [block for block, is_resident in zip(blocks, stays, strict=True) if not is_resident]
    return away, frozen


def _frozen_weights(model: nn.Module) -> list[CompressedWeight]:
    """List the frozen floating-point parameters of a model that the engine could store."""
    return [
        WholeWeight(name, p, [], identity=True, frozen=True)
        for name, p, _ in owners_of(model).values()
        if not p.requires_grad and p.dtype in DTYPES and p.numel()
    ]


def slots_of(weights: list[CompressedWeight], blocks: list[list[int]]) -> tuple[int, int]:
    """Return the bytes on the device and of page-locked memory that streamed blocks pass through.

    Parameters
    ----------
    weights : list of CompressedWeight
    blocks : list of list of int
        Numbers of each block's weights; empty if none are streamed.
    """
    if not blocks:
        return 0, 0
    return _core.fetch_footprint(tensor_specs(weights), blocks, _AHEAD)


class StreamedBlocks:
    """Puts weights into their parameters for the turns of their blocks.

    One thread at a time runs a block; a thread waits for another one's turn.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : OffloadEngine
    device : DeviceOps
    weights : list of CompressedWeight
        All weights of the engine, in its order: those that it trains come first.
    blocks : list of Block

    Attributes
    ----------
    between : BetweenTurns
        The values outside of turns.
    lock : threading.RLock
        Held during a turn, and by whoever changes weights.
    hooks : ModelHooks
        Set once they are on the model.
    """

    hooks: ModelHooks

    def __init__(
        self,
        owner: str,
        engine: Any,
        device: DeviceOps,
        weights: list[CompressedWeight],
        blocks: list[Block],
    ) -> None:
        self._owner, self._engine, self._device, self._blocks = owner, engine, device, blocks
        numbers = [i for _, of in blocks for i in of]
        self._parameters = {i: weights[i].parameter for i in numbers}
        self.between = BetweenTurns(owner, engine, weights, numbers)
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._guard: WeightsElsewhere | None = None
        self._from_folder = False
        self._turns: list[Turn] = []  # Begun and not ended; an interrupt may leave one.
        self._inside = 0  # Turns that this thread is in.
        self._calls: list[weakref.WeakSet[BlockCall]] = [weakref.WeakSet() for _ in blocks]
        self._dropped: list[weakref.WeakSet[Any]] = [weakref.WeakSet() for _ in blocks]  # Caches.
        index_of = {id(w.parameter): i for i, w in enumerate(weights) if not w.frozen}
        self._trained = [  # All weights in a block, also those that are not streamed.
            [index_of[id(p)] for p in module.parameters() if id(p) in index_of]
            for module, _ in blocks
        ]
        self._anchor = torch.zeros((), requires_grad=True)

    # ---- The model ----

    @property
    def started(self) -> bool:
        """Tell whether the values are in the store, and not in the parameters."""
        return self._guard is not None

    def first_value(self, number: int) -> torch.Tensor:
        """Return a weight in host memory before `start()`."""
        p = self._parameters[number]
        folder = folder_of(p)
        return p.detach().cpu().contiguous() if folder is None else folder.theta_on_host(p)

    def start(self) -> None:
        """Free the memory of the parameters, whose values the store has; idempotent."""
        if self.started:
            return
        self._engine.stream([of for _, of in self._blocks], _AHEAD)
        for p in self._parameters.values():
            if folder := folder_of(p):
                folder.let_go(p)
                self._from_folder = True
        self.between.empty()
        self._guard = WeightsElsewhere(self.between, list(self._parameters.values()))
        for number, (module, _) in enumerate(self._blocks):
            take_class(
                module, _StreamedBlock, sluiceway_around=staticmethod(partial(self._call, number))
            )

    def give_back(self) -> None:
        """Put the trained weights into the parameters for good; idempotent.

        A model of `open_streamed()` stays without, as it may not fit. After an error of the store
        the parameters stay without values.
        """
        if not self.started or self._from_folder:
            return
        for module, _ in self._blocks:
            give_class_back(module, _StreamedBlock)
        try:
            self.between.fetch_all()
        except Error as error:
            warnings.warn(
                f"{self._owner}: the streamed weights are not in the model, {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._guard.bring_all()
        self._guard = None

    # ---- Calls of blocks ----

    def _call(self, number: int, forward: Any, *arguments: Any, **named: Any) -> Any:
        """Run a block; the gradients of its backward come from a repetition of its forward."""
        module, _ = self._blocks[number]
        held = partial(self._held, number)
        given = (*arguments, *named.values())
        self._refuse_dropped(number, module, given)
        if not (torch.is_grad_enabled() and _trains(module, given)):
            with held(False):
                return tree_map(self._apart, forward(*arguments, **named))
        arguments, named = self._without_caches(number, module, arguments, named)
        call = BlockCall(self._owner, forward, arguments, named, held, self._apart)
        self._calls[number].add(call)
        return call.result(self._anchor)

    def _apart(self, value: Any) -> Any:
        """Return a copy of a tensor in the memory of a slot, which the next block overwrites."""
        if not isinstance(value, torch.Tensor):
            return value
        with torch_private.asking_no_class():
            slots = {p.untyped_storage().data_ptr() for p in self._in_turn()}
            is_slot = value.untyped_storage().data_ptr() in slots
        return value.clone() if is_slot else value

    def _in_turn(self) -> list[nn.Parameter]:
        blocks = {block for block, _ in self._turns}
        return [self._parameters[i] for block in blocks for i in self._blocks[block][1]]

    def _without_caches(
        self, number: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Leave out empty caches of keys and values, to which a repetition would add again."""

        def without(value: Any) -> Any:
            if not _is_cache(value):
                return value
            if value.get_seq_length() > 0:
                raise InvalidArgument(
                    f"{self._owner}: {type(module).__name__} gets a cache of keys and values while "
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
                    f"{self._owner}: {type(module).__name__} gets a cache that an earlier forward "
                    "with gradients has left empty; make that forward under torch.no_grad()"
                )

    # ---- Turns ----

    @contextmanager
    def _held(self, block: int, backward: bool) -> Iterator[None]:
        """Hold a block's weights in its parameters."""
        if os.getpid() != self._process:
            raise InvalidArgument(
                f"{self._owner}: process {os.getpid()} is a forked child and has no lanes that "
                "fetch weights; run the model in the process that made the optimizer"
            )
        with self.lock:
            if not self.started:  # A backward after close(), which has given the weights back.
                yield
                return
            if backward:
                self._begin_backward(block)
            if any(begun == block for begun, _ in self._turns[: self._inside]):
                yield  # The block calls itself.
                return
            while len(self._turns) > self._inside:
                self._end_turn()
            self._inside += 1
            try:
                with self._turn(block, backward):
                    yield
            finally:
                self._inside -= 1

    def _begin_backward(self, block: int) -> None:
        self.hooks.begin_backward(0)  # Otherwise the repetition's backward opens one.
        # A block that runs several times has one gradient in a backward, as without streaming.
        again = any(call.is_due() for call in self._calls[block])
        self.hooks.hold_back(self._trained[block], again)

    @contextmanager
    def _turn(self, block: int, backward: bool) -> Iterator[None]:
        _, numbers = self._blocks[block]
        self.between.take_over(numbers)
        self._turns.append((block, backward))
        try:
            values = self._engine.acquire_block(block, backward, self._device.compute())
            before = self.between.begin_turn(numbers, values)
            self._guard.bring([self._parameters[i] for i in numbers])
            yield
            for number, was, now in zip(
                numbers, before, self.between.versions(numbers), strict=True
            ):
                if was != now:
                    name = self.between.name_of(self._parameters[number])
                    raise InvalidArgument(
                        f"{self._owner}: {name} was changed while its block ran, and the change is "
                        "lost; change streamed weights between steps (nn.Embedding(max_norm=) "
                        "cannot be streamed)"
                    )
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        """End the last turn, also one of which not all has begun."""
        block, backward = self._turns[-1]
        _, numbers = self._blocks[block]
        self.between.end_turn(numbers)
        self._guard.take_out([self._parameters[i] for i in numbers])
        with contextlib.suppress(InvalidArgument):  # It was not acquired.
            self._engine.release_block(block, backward, self._device.compute())
        self._turns.pop()


def _trains(module: nn.Module, given: tuple[Any, ...]) -> bool:
    """Tell whether a backward goes through a block that is called with these arguments."""
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    return any(t.requires_grad for t in (*tensors, *module.parameters()))


def _is_cache(value: Any) -> bool:
    """Tell whether a value is a cache of keys and values of transformers."""
    return any(kind.__name__ == "Cache" for kind in type(value).__mro__) and hasattr(
        value, "get_seq_length"
    )


class _StreamedBlock(OtherClass):
    """Base class that a streamed block's class has before the block's original class."""

    sluiceway_around: ClassVar[Any]

    @torch.compiler.disable
    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the original forward with the block's weights on the device."""
        return type(self).sluiceway_around(super().forward, *arguments, **named)

    # The block is computed again in any case: transformers' checkpointing would do so twice.
    @property
    def gradient_checkpointing(self) -> bool:
        """Always False while the block is streamed."""
        return False

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.__dict__["gradient_checkpointing"] = value  # It counts once the optimizer is closed.
