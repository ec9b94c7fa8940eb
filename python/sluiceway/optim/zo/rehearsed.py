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


class StreamedUses:
    """Hooks that see in which order modules with trained weights of their own run."""

    def __init__(self, model: nn.Module) -> None:
        self._uses: list[tuple[int, int, bool]] = []
        self._calls = 0
        self._sizes: dict[int, tuple[int, bool]] = {}  # Bytes of a weight, and whether it moves.
        model.register_forward_pre_hook(lambda *_: self._begin(), prepend=True)
        for module in model.modules():
            trained = [p for p in module._parameters.values() if p is not None and p.requires_grad]
            if trained:
                module.register_forward_pre_hook(lambda *_, of=trained: self._call(of))

    def _begin(self) -> None:
        self._uses, self._calls = [], 0

    def _call(self, weights: list[nn.Parameter]) -> None:
        for p in weights:
            self._sizes[id(p)] = size = p.nbytes, p.dim() >= 2
            self._uses.append((size[0], self._calls, size[1]))
        self._calls += 1

    def slots(self) -> list[tuple[int, int, bool]]:
        """Bytes, number of the module and whether it is streamed, of each use."""
        return self._uses

    @property
    def streamed_bytes(self) -> int:
        """Of a pass, over the link."""
        return sum(size for size, _, moves in self._uses if moves)

    @property
    def resident_bytes(self) -> int:
        """Of norms and biases, each once."""
        return sum(size for size, moves in self._sizes.values() if not moves)
