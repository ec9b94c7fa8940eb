"""What the measurement of a direction adds to a forward whose tensors have no bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sluiceway.model.blocks import find_blocks, weights_by_block


class PerturbedCopies:
    """Hooks that hold what a measurement holds beside a plain forward of one half.

    That are two copies a direction of the weights outside of the blocks throughout, two of a block
    inside it, and what the halves that wait before the block were given: for it, and for the first
    one, which the forward of a decoder keeps to its end.
    """

    def __init__(self, model: nn.Module, directions: int, batches: int) -> None:
        blocks = find_blocks("zo", model)
        self._directions, self._others = directions, 2 * directions * batches - 1
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
    """Hooks that see in which order modules with trained weights of their own run.

    They hold what the other halves hold, which wait before such a module: of each module that they
    are in, what it was given, and what its parts have returned, but for members of a list, of which
    each takes over from the one before.
    """

    def __init__(self, model: nn.Module, directions: int, batches: int) -> None:
        self._others = 2 * directions * batches - 1
        self._given: dict[int, list[torch.Tensor]] = {}  # By storage.
        self._inside: list[list[int]] = []
        self._uses: list[tuple[int, int, bool]] = []
        self._calls = 0
        self._sizes: dict[int, tuple[int, bool]] = {}  # Bytes of a weight, and whether it moves.
        model.register_forward_pre_hook(lambda *_: self._begin(), prepend=True)
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
        passing = {id(member) for members in lists for member in members}
        for module in model.modules():
            module.register_forward_pre_hook(
                lambda _, args, kwargs: self._enter((args, kwargs)), prepend=True, with_kwargs=True
            )
            kept = id(module) not in passing
            module.register_forward_hook(lambda _, __, out, kept=kept: self._leave(out, kept))
            trained = [p for p in module._parameters.values() if p is not None and p.requires_grad]
            if trained:
                module.register_forward_pre_hook(lambda *_, of=trained: self._call(of))

    def _begin(self) -> None:
        self._uses, self._calls = [], 0

    def _enter(self, given: Any) -> None:
        self._inside.append([])
        self._hold(given)

    def _leave(self, returned: Any, kept: bool) -> None:
        for key in self._inside.pop():
            del self._given[key]
        if kept and self._inside:
            self._hold(returned)

    def _hold(self, values: Any) -> None:
        for leaf in tree_leaves(values):
            if not isinstance(leaf, torch.Tensor):
                continue
            key = leaf.untyped_storage()._cdata
            if key not in self._given:
                self._given[key] = [torch.empty_like(leaf) for _ in range(self._others)]
                self._inside[-1].append(key)

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
