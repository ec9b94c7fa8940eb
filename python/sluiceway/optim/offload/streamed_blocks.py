"""Blocks of a model whose weights are in the store, and on the device only in their turn.

A turn is one forward of a block, or its repetition and backward.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.engines.offload import OffloadOptions
from sluiceway.errors import Error, InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.model.blocks import find_blocks, weights_by_block
from sluiceway.model.targets import CompressedWeight, owners_of
from sluiceway.model.whole_weights import DTYPES, WholeWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.activations import Activations
from sluiceway.optim.common.elsewhere import WeightsElsewhere
from sluiceway.optim.common.repeated_blocks import RepeatedBlocks, refuse_repeated
from sluiceway.optim.offload.between_turns import BetweenTurns
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
    options: OffloadOptions,
) -> tuple[list[Block], list[CompressedWeight]]:
    """Mark the weights to stream; return the blocks that are away, in the model's order.

    Returns also the streamed weights that are frozen, which the engine has after those that it
    trains.

    A weight is streamed if one block alone reads it and if it fills at least half a chunk, so that
    it shares none. Blocks stay on the device nevertheless, up to `options.resident` bytes of such
    weights.

    Raises
    ------
    InvalidArgument
        The model has no blocks, no such weight, or no frozen one for `options.frozen_codec`.
    """
    found = find_blocks(owner, model)
    refuse_repeated(owner, model, [module for _, module in found.blocks])
    block_of = {id(p): number for _, p, number in weights_by_block(model, found)}
    numbers: list[list[int]] = [[] for _ in found.blocks]
    frozen = _frozen_weights(model, options.frozen_codec == "fp8")
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
    if options.frozen_codec != "identity" and not frozen:
        raise InvalidArgument(
            f"{owner}: frozen_codec is {options.frozen_codec}, but no weight that is streamed is "
            "frozen; take identity, or freeze weights with requires_grad_(False) first"
        )
    sizes = [sum(weights[i].parameter.nbytes for i in of) for _, of in blocks]
    stays = _core.choose_resident(sizes, options.resident)
    for (_, of), is_resident in zip(blocks, stays, strict=True):
        for index in of:
            weights[index].resident = is_resident
    away = {id(weight.parameter) for weight in weights if weight.away}
    for p in model.parameters():
        if id(p) not in away and (folder := folder_of(p)):
            folder.refresh(p)
    away = [block for block, is_resident in zip(blocks, stays, strict=True) if not is_resident]
    return away, frozen


def _frozen_weights(model: nn.Module, fp8: bool) -> list[CompressedWeight]:
    """List the frozen floating-point parameters of a model that the engine could store."""
    return [
        WholeWeight(name, p, [], identity=True, frozen=True, fp8=fp8)
        for name, p, _ in owners_of(model).values()
        if not p.requires_grad and p.dtype in DTYPES and p.numel()
    ]


def fetch_footprint(
    weights: list[CompressedWeight],
    blocks: list[list[int]],
    chunk_elements: int,
    state_codec: str,
) -> dict[str, int]:
    """Return what streaming of blocks takes.

    Parameters
    ----------
    weights : list of CompressedWeight
    blocks : list of list of int
        Numbers of each block's weights; empty if none are streamed.
    chunk_elements : int
        Elements of a chunk of the store.
    state_codec : str

    Returns
    -------
    dict
        `device_bytes` and `pinned_bytes` of the slots that weights pass through, `pass_bytes`,
        which a forward and its backward fetch, and `forward_bytes`, the forward's part of these;
        `kept_bytes`, host memory in which speculative updates find fetched weights, and
        `spared_bytes`, which they need not read then.
    """
    if not blocks:
        names = ("device", "pinned", "pass", "forward", "kept", "spared")
        return {f"{name}_bytes": 0 for name in names}
    return _core.fetch_footprint(tensor_specs(weights), blocks, _AHEAD, chunk_elements, state_codec)


class StreamedBlocks(RepeatedBlocks):
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
    activations : Activations, optional
        Where the blocks' inputs wait; by default on the device.
    micro_batches : int
        Parts of a batch, all of which pass through a block before the next block.

    Attributes
    ----------
    between : BetweenTurns
        The values outside of turns.
    lock : threading.RLock
        Held during a turn, and by whoever changes weights.
    """

    def __init__(
        self,
        owner: str,
        engine: Any,
        device: DeviceOps,
        weights: list[CompressedWeight],
        blocks: list[Block],
        activations: Activations | None,
        micro_batches: int,
    ) -> None:
        trained = [weight.parameter for weight in weights if not weight.frozen]
        modules = [module for module, _ in blocks]
        super().__init__(owner, modules, trained, activations, micro_batches)
        self._engine, self._device, self._blocks = engine, device, blocks
        numbers = [i for _, of in blocks for i in of]
        self._parameters = {i: weights[i].parameter for i in numbers}
        self.between = BetweenTurns(owner, engine, weights, numbers)
        self.lock = threading.RLock()
        self._guard: WeightsElsewhere | None = None
        self._from_folder = False
        self._turns: list[Turn] = []  # Begun and not ended; an interrupt may leave one.
        self._inside = 0  # Turns that this thread is in.

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
        super().start()

    def give_back(self) -> None:
        """Put the trained weights into the parameters for good; idempotent.

        A model of `open_streamed()` stays without, as it may not fit. After an error of the store
        the parameters stay without values.
        """
        if not self.started or self._from_folder:
            return
        super().give_back()
        try:
            self.between.fetch_all()
        except Error as error:
            warnings.warn(
                f"{self.owner}: the streamed weights are not in the model, {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._guard.bring_all()
        self._guard = None

    def apart(self, value: Any) -> Any:
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

    # ---- Turns ----

    @contextmanager
    def held(self, block: int, backward: bool) -> Iterator[None]:
        """Hold a block's weights in its parameters."""
        self._refuse_fork()
        with self.lock:
            if not self.started:  # A backward after close(), which has given the weights back.
                yield
                return
            if backward:
                self._begin_backward()
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
                        f"{self.owner}: {name} was changed while its block ran, and the change is "
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
