"""Rehearses the memory that measuring a direction adds to a forward without bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sluiceway.model.blocks import find_blocks, weights_by_block
from sluiceway.model.rehearsal import living_bytes
from sluiceway.optim.common import torch_private


class PerturbedCopies:
    """Hooks that allocate the extra memory of a measurement in one plain forward pass.

    This memory is: two copies per direction of the weights outside of the blocks, throughout; two
    copies of a block's weights inside of the block; and the inputs of the forward passes that wait
    before the block, both for it and for the first block, which a decoder keeps to the end.

    Parameters
    ----------
    model : torch.nn.Module
    directions, batches : int
    """

    def __init__(self, model: nn.Module, directions: int, batches: int) -> None:
        blocks = find_blocks("zo", model)
        self._directions, self._others = directions, 2 * directions * batches - 1
        self._of: dict[int | None, list[nn.Parameter]] = {}
        for _, parameter, block in weights_by_block(model, blocks):
            if parameter.requires_grad:
                self._of.setdefault(block, []).append(parameter)
        self._held: dict[int | None, list[torch.Tensor]] = {}
        self._waiting: dict[bool, list[torch.Tensor]] = {}  # Key True: inputs of the first block.
        model.register_forward_pre_hook(lambda *_: self._hold(None), prepend=True)
        model.register_forward_hook(lambda *_: self._end())
        for number, (_, block) in enumerate(blocks.blocks):
            block.register_forward_pre_hook(
                lambda _, args, kwargs, n=number: self._enter(n, (args, kwargs)),
                prepend=True, with_kwargs=True,
            )  # fmt: skip
            block.register_forward_hook(lambda *_, n=number: self._drop(n))

    def _hold(self, block: int | None) -> None:
        copies = 2 * (self._directions if block is None else 1)
        self._held[block] = [
            torch.empty_like(p) for p in self._of.get(block, []) for _ in range(copies)
        ]

    def _enter(self, block: int, given: Any) -> None:
        self._waiting.pop(block == 0, None)
        self._waiting[block == 0] = [
            torch.empty_like(leaf)
            for leaf in tree_leaves(given)
            if isinstance(leaf, torch.Tensor)
            for _ in range(self._others)
        ]
        self._hold(block)

    def _drop(self, block: int | None) -> None:
        del self._held[block]

    def _end(self) -> None:
        self._waiting = {}
        self._drop(None)


class StreamedUses:
    """Hooks that record the order in which modules with trained weights of their own run.

    Forward passes meet at these modules. While one of them runs from such a module to the next one,
    each of the others waits before the first or the second module, and holds all that it needs
    later.
    """

    def __init__(self, model: nn.Module) -> None:
        self._uses: list[tuple[int, int, bool]] = []
        self._calls = 0
        self._sizes: dict[int, tuple[int, bool]] = {}  # Bytes of a weight; True if it is streamed.
        self._at_rest = self._held = 0
        # Bytes of a running and of a waiting forward pass.
        self._meetings: set[tuple[int, int]] = set()
        model.register_forward_pre_hook(lambda *_: self._begin(), prepend=True)
        model.register_forward_hook(lambda *_: self._meet(0))  # At the end, only a loss is held.
        for module in model.modules():
            trained = [
                p
                for p in torch_private.held_parameters(module).values()
                if p is not None and p.requires_grad
            ]
            if trained:
                module.register_forward_pre_hook(lambda *_, of=trained: self._call(of))

    def _begin(self) -> None:
        self._uses, self._calls, self._held = [], 0, 0
        self._at_rest, _ = living_bytes()

    def _call(self, weights: list[nn.Parameter]) -> None:
        self._meet()
        for p in weights:
            self._sizes[id(p)] = size = p.nbytes, p.dim() >= 2
            self._uses.append((size[0], self._calls, size[1]))
        self._calls += 1

    def _meet(self, held: int | None = None) -> None:
        now, most = living_bytes()
        held = now - self._at_rest if held is None else held
        self._meetings.add((most, max(held, self._held)))
        self._held = held

    def peak_bytes(self, forwards: int) -> int:
        """Peak bytes of the model's weights and of all forward passes together.

        `forwards` counts all forward passes of a step or of an evaluation.
        """
        return max(running + (forwards - 1) * waiting for running, waiting in self._meetings)

    def slots(self) -> list[tuple[int, int, bool]]:
        """List bytes and number of the module for each use; True if the weight is streamed."""
        return self._uses

    @property
    def streamed_bytes(self) -> int:
        """Bytes that a pass moves over the link."""
        return sum(size for size, _, moves in self._uses if moves)

    @property
    def resident_bytes(self) -> int:
        """Bytes of norms and biases, each counted once."""
        return sum(size for size, moves in self._sizes.values() if not moves)
