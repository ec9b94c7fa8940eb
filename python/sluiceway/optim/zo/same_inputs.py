"""Gives all forward passes of a step the same random numbers, and compares their inputs.

It compares digests of arguments that cannot depend on the weights: the arguments of each
call of the model, and of the first block or layer with weights that runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from sluiceway.errors import InvalidArgument


@dataclass
class _Batch:
    """Inputs of one closure, which all its forward passes must get."""

    leader: str  # Name of the first forward pass that ran; the others are compared with it.
    calls: list[tuple[str, bytes]] = field(default_factory=list)


class SameInputs:
    """Digests of one step's inputs.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._batches: dict[int, _Batch] = {}
        self._batch_of: dict[str, _Batch] = {}
        self._seen: dict[str, int] = {}

    def begin(self, forward: str, closure: int) -> None:
        """Note that `forward` is about to run the closure of this number."""
        self._batch_of[forward] = self._batches.setdefault(closure, _Batch(forward))
        self._seen[forward] = 0

    def is_fresh(self, forward: str) -> bool:
        """Tell whether nothing in this forward pass was compared yet."""
        return self._seen[forward] == 0

    def check(self, forward: str, module: str, arguments: Any) -> None:
        """Compare the arguments of a call.

        Raises
        ------
        InvalidArgument
            They differ from the arguments in the first forward pass of the same closure.
        """
        number, found = self._seen[forward], (module, _digest(arguments))
        self._seen[forward] += 1
        batch = self._batch_of[forward]
        if forward == batch.leader:
            batch.calls.append(found)
        elif number >= len(batch.calls) or batch.calls[number] != found:
            raise InvalidArgument(
                f"{self._owner}.step: inputs of {module} in call {number} of forward pass "
                f"{forward} differ from the inputs of the closure's first forward pass. The two "
                "losses are subtracted, so both need the same batch; call next(loader) before "
                "step(), not inside the closure"
            )


def _digest(arguments: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            if leaf.layout is torch.strided and not leaf.is_meta:
                values = leaf.detach().cpu().contiguous().reshape(-1)
                digest.update(values.view(torch.uint8).numpy().data if values.numel() else b"")
        elif isinstance(leaf, int | float | bool | str | None):
            digest.update(repr(leaf).encode())
    return digest.digest()
