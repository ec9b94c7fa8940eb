"""What the measurement of a direction adds to a forward whose tensors have no bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sluiceway.model.blocks import find_blocks, weights_by_block


class PerturbedCopies:
    """Hooks that hold what a measurement holds beside a plain forward of one half.

    That are two copies of the weights outside of the blocks throughout, two of a block inside it,
    and what the half that waits before the block was given: for it, and for the first one, which
    the forward of a decoder keeps to its end.
    """

    def __init__(self, model: nn.Module) -> None:
        blocks = find_blocks("zo", model)
        self._of: dict[int | None, list[nn.Parameter]] = {}
        for _, parameter, block in weights_by_block(model, blocks):
            if parameter.requires_grad:
                self._of.setdefault(block, []).append(parameter)
        self._held: dict[int | None, list[torch.Tensor]] = {}
        self._waiting: dict[bool, list[torch.Tensor]] = {}  # By whether the block is the first.
        model.register_forward_pre_hook(lambda *_: self._hold(None), prepend=True)
        model.register_forward_hook(lambda *_: self._end())
        for number, (_, block) in enumerate(blocks.blocks):
            block.register_forward_pre_hook(
                lambda _, args, kwargs, n=number: self._enter(n, (args, kwargs)),
                prepend=True, with_kwargs=True,
            )  # fmt: skip
            block.register_forward_hook(lambda *_, n=number: self._drop(n))

    def _hold(self, block: int | None) -> None:
        self._held[block] = [torch.empty_like(p) for p in self._of.get(block, []) for _ in "+-"]

    def _enter(self, block: int, given: Any) -> None:
        self._waiting.pop(block == 0, None)
        self._waiting[block == 0] = [
            torch.empty_like(leaf) for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)
        ]
        self._hold(block)

    def _drop(self, block: int | None) -> None:
        del self._held[block]

    def _end(self) -> None:
        self._waiting = {}
        self._drop(None)
