"""Whether all halves of a measurement were given the same inputs.

Compared are digests of what cannot depend on the weights: the arguments of the model, whenever it
is called, and of the first block or layer with weights that runs at all.
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
    """What all halves of one closure are given."""

    leader: str  # The first half to come says what it is.
    calls: list[tuple[str, bytes]] = field(default_factory=list)


class SameInputs:
    """Digests of one step's inputs.

    Parameters
    ----------
    owner : str
        Whose error it is.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._batches: dict[int, _Batch] = {}
        self._batch_of: dict[str, _Batch] = {}
        self._seen: dict[str, int] = {}

    def begin(self, half: str, closure: int) -> None:
        """`half` is about to run a closure, of that number."""
        self._batch_of[half] = self._batches.setdefault(closure, _Batch(half))
        self._seen[half] = 0

    def is_fresh(self, half: str) -> bool:
        """Whether nothing of it has been compared yet."""
        return self._seen[half] == 0

    def check(self, half: str, module: str, arguments: Any) -> None:
        """Compare the arguments of a call.

        Raises
        ------
        InvalidArgument
            They are not those of the first half of the same closure.
        """
        number, found = self._seen[half], (module, _digest(arguments))
        self._seen[half] += 1
        batch = self._batch_of[half]
        if half == batch.leader:
            batch.calls.append(found)
        elif number >= len(batch.calls) or batch.calls[number] != found:
            raise InvalidArgument(
                f"{self._owner}.step: inputs of {module} in call {number} of the closure's half "
                f"{half} differ from those of its first half, expected the same batch, as the two "
                "losses are subtracted; call next(loader) before step(), not inside the closure"
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
