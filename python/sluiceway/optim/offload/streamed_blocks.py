"""Blocks of a model whose weights are in the store, and on the device only in their turn.

Between its turns a parameter keeps shape, type and device, but has no memory of its own. A read
outside of a turn fetches the weight, and a change of it is taken over like that of any weight.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import Error, InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.model.blocks import find_blocks, weights_by_block
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import WeightsElsewhere, absent
from sluiceway.optim.common.model_hooks import ModelHooks
from sluiceway.optim.offload.block_call import BlockCall
from sluiceway.optim.offload.cores import tensor_specs
from sluiceway.optim.offload.edited_weights import load_edited
from sluiceway.optim.offload.open_streamed import folder_of

_AHEAD = 1  # Blocks that are fetched while one computes.
Block = tuple[nn.Module, list[int]]  # Its module, and the numbers of its streamed weights.


def choose_streamed(
    owner: str,
    model: nn.Module,
    weights: list[CompressedWeight],
    chunk_elements: int,
    room: int,
) -> list[Block]:
    """Mark the weights to stream, and return the blocks that are away, in the model's order.

    A weight is streamed if one block alone reads it and if it fills at least half a chunk, so that
    it shares none. Blocks stay on the device nevertheless, up to `room` bytes of such weights.

    Raises
    ------
    InvalidArgument
        The model has no blocks, or no such weight.
    """
    found = find_blocks(owner, model)
    block_of = {id(p): number for _, p, number in weights_by_block(model, found)}
    numbers: list[list[int]] = [[] for _ in found.blocks]
    for index, weight in enumerate(weights):
        block = block_of.get(id(weight.parameter))
        weight.streamed = block is not None and 2 * weight.parameter.numel() >= chunk_elements
        if weight.streamed:
            numbers[block].append(index)
    blocks = [(m, of) for (_, m), of in zip(found.blocks, numbers, strict=True) if of]
    if not blocks:
        raise InvalidArgument(
            f"{owner}: no block of {found.name or type(model).__name__} has a trainable weight of "
            f"at least half a chunk, {chunk_elements // 2} elements, so none can be streamed; set "
            "a smaller chunk, or weights='resident'"
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
    return [block for block, is_resident in zip(blocks, stays, strict=True) if not is_resident]


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

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : OffloadEngine
    device : DeviceOps
    weights : list of CompressedWeight
        All weights of the engine, in its order.
    blocks : list of Block

    Attributes
    ----------
    hooks : ModelHooks
        Set once they are on the model.
    """

    fills_state_dict = False
    hooks: ModelHooks

    def __init__(
        self,
        owner: str,
        engine: Any,
        device: DeviceOps,
        weights: list[CompressedWeight],
        blocks: list[Block],
    ) -> None:
        self.owner = owner
        self._engine, self._device, self._weights, self._blocks = engine, device, weights, blocks
        self._number = {id(weights[i].parameter): i for _, of in blocks for i in of}
        self._absent: dict[int, torch.Tensor] = {}  # Empty before `start()`.
        self._guard: WeightsElsewhere | None = None
        self._fetched: set[int] = set()  # Weights that were read outside of a turn.
        self._from_folder = False
        self._calls: list[weakref.WeakSet[BlockCall]] = [weakref.WeakSet() for _ in blocks]
        index_of = {id(weight.parameter): i for i, weight in enumerate(weights)}
        self._trained = [  # All weights in a block, also those that are not streamed.
            [index_of[id(p)] for p in module.parameters() if id(p) in index_of]
            for module, _ in blocks
        ]
        self._anchor = torch.zeros((), requires_grad=True)

    # ---- The model ----

    def start(self) -> None:
        """Free the memory of the parameters, whose values the store has; idempotent."""
        if self._guard is not None:
            return
        self._engine.stream([of for _, of in self._blocks], _AHEAD)
        parameters = [self._weights[i].parameter for i in self._number.values()]
        with torch_private.asking_no_class():
            for number in self._number.values():
                p = self._weights[number].parameter
                if folder := folder_of(p):
                    folder.let_go(p)
                    self._from_folder = True
                p.data = self._absent[number] = absent(p, p.device)
        self._guard = WeightsElsewhere(self, parameters)
        for number, (module, _) in enumerate(self._blocks):
            _stream(module, partial(self._call, number))

    @property
    def started(self) -> bool:
        """Tell whether the values are in the store, and not in the parameters."""
        return self._guard is not None

    def first_value(self, number: int) -> torch.Tensor:
        """Return a weight in host memory before `start()`."""
        p = self._weights[number].parameter
        folder = folder_of(p)
        return p.detach().cpu().contiguous() if folder is None else folder.theta_on_host(p)

    def give_back(self) -> None:
        """Put the trained weights into the parameters for good; idempotent.

        A model of `open_streamed()` stays without, as it may not fit. After an error of the store
        the parameters stay without values.
        """
        if self._guard is None or self._from_folder:
            return
        for module, _ in self._blocks:
            _end_streaming(module)
        try:
            for number in self._number.values():
                self._fetch(number)
        except Error as error:
            warnings.warn(
                f"{self.owner}: the streamed weights are not in the model, {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._guard.bring_all()
        self._guard = None

    def _call(self, number: int, forward: Any, *arguments: Any, **named: Any) -> Any:
        """Run a block; the gradients of its backward come from a repetition of its forward."""
        held = partial(self._held, number)
        if not torch.is_grad_enabled():
            with held(False):
                return forward(*arguments, **named)
        call = BlockCall(forward, arguments, named, held)
        self._calls[number].add(call)
        return call.result(self._anchor)

    @contextmanager
    def _held(self, block: int, backward: bool) -> Iterator[None]:
        """Hold a block's weights in its parameters."""
        numbers = self._blocks[block][1]
        if backward:
            self.hooks.begin_backward(numbers[0])  # Otherwise the repetition's backward opens one.
            # A block that runs several times has one gradient in a backward, as without streaming.
            again = any(call.is_due() for call in self._calls[block])
            self.hooks.hold_back(self._trained[block], again)
        self.take_over()
        parameters = [self._weights[i].parameter for i in numbers]
        compute = self._device.compute()
        weights = self._engine.acquire_block(block, backward, compute)
        try:
            with torch_private.asking_no_class():
                for p, weight in zip(parameters, weights, strict=True):
                    p.data = weight
            self._guard.bring(parameters)
            yield
        finally:
            with torch_private.asking_no_class():
                for number, p in zip(numbers, parameters, strict=True):
                    p.data = self._absent[number]
            self._guard.take_out(parameters)
            self._engine.release_block(block, backward, self._device.compute())

    # ---- Reads outside of a turn ----

    def name_of(self, p: nn.Parameter) -> str:
        """The parameter's name in the model."""
        return self._weights[self._number[id(p)]].name

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Return a copy of a parameter's trained weights in host memory."""
        number = self._number[id(p)]
        if number in self._fetched:
            with torch_private.asking_no_class():
                return p.detach().cpu().clone()
        return self._engine.read_weight(number)

    def value_of(self, p: nn.Parameter) -> torch.Tensor:
        """Return the value of any parameter of the model."""
        return self.theta_on_host(p) if id(p) in self._number else p.detach()

    def refresh(self, p: nn.Parameter) -> bool:
        """Fetch a weight into memory of the parameter's own, until its block's next turn."""
        self._fetch(self._number[id(p)])
        return True

    def _fetch(self, number: int) -> None:
        if number in self._fetched:
            return
        p = self._weights[number].parameter
        value = self._engine.read_weight(number).to(p.device)
        with torch_private.asking_no_class():
            p.data = value
        self._fetched.add(number)

    def forget(self) -> None:
        """Drop weights that were read outside of a turn, with all changes of them."""
        with torch_private.asking_no_class():
            for number in self._fetched:
                self._weights[number].parameter.data = self._absent[number]
        self._fetched.clear()

    def take_over(self) -> None:
        """Set the masters of weights that other code has changed outside of a turn.

        Raises
        ------
        InvalidArgument
            Gradients are gathered, which do not belong to the new values. The text names the
            weight. The call changed nothing.
        """
        for number in sorted(self._fetched):
            weight = self._weights[number]
            here = self.theta_on_host(weight.parameter)
            if not _same_bits(here, self._engine.read_weight(number)):
                load_edited(self.owner, self._engine, number, weight)
        self.forget()


class _StreamedBlock(nn.Module):
    """Base class that a streamed block's class has before the block's original class."""

    around: ClassVar[Any]
    before: ClassVar[type[nn.Module]]

    @torch.compiler.disable
    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the original forward with the block's weights on the device."""
        return type(self).around(super().forward, *arguments, **named)

    # The block is computed again in any case: transformers' checkpointing would do so twice.
    @property
    def gradient_checkpointing(self) -> bool:
        """Always False while the block is streamed."""
        return False

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.__dict__["gradient_checkpointing"] = value  # It counts once the optimizer is closed.

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # Protocol 0, as pickle allows a class other than the object's in no later protocol.
        make, arguments, *rest = super().__reduce_ex__(0)
        as_before = (self.before if one is type(self) else one for one in arguments)
        return make, tuple(as_before), *rest


def _stream(module: nn.Module, around: Any) -> None:
    kind = type(module)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    members = {**names, "around": staticmethod(around), "before": kind}
    module.__class__ = type(kind.__name__, (_StreamedBlock, kind), members)


def _end_streaming(module: nn.Module) -> None:
    if _StreamedBlock in type(module).__bases__:  # Otherwise other code has changed its class.
        module.__class__ = module.before


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
