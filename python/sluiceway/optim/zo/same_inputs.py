"""Whether all halves of a measurement were given the same inputs.

Compared are digests of what cannot depend on the weights: the arguments of the model, whenever it
is called, and of the first block or layer with weights that runs at all.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from sluiceway.errors import InvalidArgument


class SameInputs:
    """Digests of one step's inputs; the first half to come says what they are.

    Parameters
    ----------
    owner : str
        Whose error it is.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._first: list[tuple[str, bytes]] = []
        self._seen: dict[Any, int] = {}

    def begin(self, half: Any) -> None:
        """`half`, whatever names it, is about to begin."""
        self._seen[half] = 0

    def is_fresh(self, half: Any) -> bool:
        """Whether nothing of it has been compared yet."""
        return self._seen[half] == 0

    def check(self, half: Any, module: str, arguments: Any) -> None:
        """Compare the arguments of a call.

        Raises
        ------
        InvalidArgument
            They are not those of the first half.
        """
        number, found = self._seen[half], (module, _digest(arguments))
        self._seen[half] += 1
        if half == next(iter(self._seen)):
            self._first.append(found)
        elif number >= len(self._first) or self._first[number] != found:
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
