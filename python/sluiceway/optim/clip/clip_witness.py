"""Ordinary gradients that bear witness to how gradients were scaled.

Whoever clips scales the sentinel, and with it all compressed gradients, by one factor. If ordinary
gradients were scaled by others, gradients were clipped layer by layer or group by group, and the
sentinel's factor is that of one group only. A few numbers of a few gradients tell.
"""

from __future__ import annotations

import math

import torch

from sluiceway.errors import InvalidArgument

_WITNESSES = 16
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


class ClipWitness:
    """Two elements of some ordinary gradients, as they were after the last backward.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    parameters : list of (str, torch.Tensor)
        Those with ordinary gradients.
    """

    def __init__(self, owner: str, parameters: list[tuple[str, torch.Tensor]]) -> None:
        large = [(name, p) for name, p in parameters if p.numel() >= 2]
        count = min(_WITNESSES, len(large))
        self._owner = owner
        # Spread over the whole depth of the model.
        self._parameters = [large[i * len(large) // count] for i in range(count)]
        # Looked for once, and again where they have vanished.
        self._places: list[list[int]] = [[] for _ in self._parameters]
        self._seen: list[list[float]] = []

    def note(self) -> None:
        """Remember the gradients as they are."""
        self._seen = [self._read(i, p.grad) for i, (_, p) in enumerate(self._parameters)]

    def _read(self, witness: int, gradient: torch.Tensor | None) -> list[float]:
        if gradient is None or gradient.is_sparse:
            return []
        flat = gradient.reshape(-1)
        if not self._places[witness]:
            self._places[witness] = flat.abs().topk(2).indices.tolist()
        values = flat[self._places[witness]].tolist()
        if all(v != 0 and math.isfinite(v) for v in values):
            return values
        self._places[witness] = []
        return []

    def check(self, factor: float) -> None:
        """Refuse `factor`, by which the sentinel was scaled, if ordinary gradients had another.

        A gradient whose elements were changed in different ways was not clipped but edited, and
        says nothing.

        Raises
        ------
        InvalidArgument
            The gradient and both factors are named.
        """
        if not math.isfinite(factor) or abs(factor - 1.0) <= 1e-6:
            return
        for (name, p), places, before in zip(
            self._parameters, self._places, self._seen, strict=True
        ):
            if not before or p.grad is None:
                continue
            now = p.grad.reshape(-1)[places].tolist()
            first, second = (a / b for a, b in zip(now, before, strict=True))
            tolerance = _TOLERANCE.get(p.grad.dtype, 2e-2)
            if not math.isfinite(first) or first == 0 or not _close(first, second, tolerance):
                continue
            if not _close(first, factor, tolerance):
                raise InvalidArgument(
                    f"{self._owner}: the gradient of {name} was scaled by {first:.6g}, that of all "
                    f"compressed weights by {factor:.6g}, expected one factor for all; to clip by "
                    "layers or groups use opt.clip_grad_norm_(max_norm, parameters=[...])"
                )


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))
