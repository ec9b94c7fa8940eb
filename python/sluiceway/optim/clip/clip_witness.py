"""Ordinary gradients that bear witness to how gradients were scaled.

Whoever clips scales the sentinel, and with it all compressed gradients, by one factor. If ordinary
gradients were scaled by others, gradients were clipped layer by layer or group by group, and the
sentinel's factor is that of one group only. A few numbers of a few gradients tell.
"""

from __future__ import annotations

import math

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.guards.mixed_modules import MixedModules

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
    modules : MixedModules
        Of the same list.
    """

    def __init__(
        self, owner: str, parameters: list[tuple[str, torch.Tensor]], modules: MixedModules
    ) -> None:
        large = [number for number, (_, p) in enumerate(parameters) if p.numel() >= 2]
        count = min(_WITNESSES, len(large))
        self._owner = owner
        # Spread over the whole depth of the model.
        self._numbers = [large[i * len(large) // count] for i in range(count)]
        self._parameters = [parameters[number] for number in self._numbers]
        self._modules = modules
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

    def check(self, factor: float, of_frozen: float) -> None:
        """Refuse `factor`, by which the sentinel was scaled, if ordinary gradients had another.

        Those of parameters that are frozen go with `of_frozen`, that of the second sentinel.

        A gradient whose elements were changed in different ways was not clipped but edited, and
        says nothing. Where the sentinel was not scaled, ordinary gradients may be, one by one; but
        not all of a module that has compressed ones too.

        Raises
        ------
        InvalidArgument
            The gradient and both factors are named.
        """
        if not math.isfinite(factor):
            return
        found = {i: self._factor(i) for i in range(len(self._parameters))}
        known = {i: f for i, f in found.items() if f is not None}
        wanted = {i: factor if self._parameters[i][1].requires_grad else of_frozen for i in known}
        differ = {i: f for i, f in known.items() if not self._agree(i, f, wanted[i])}
        if abs(factor - 1.0) > 1e-6:
            first = next((i for i, f in differ.items() if f != 0), None)
        else:
            numbers = {self._numbers[i]: i for i in differ}
            asked = {self._numbers[i] for i, before in enumerate(self._seen) if before}
            touched = self._modules.touched(numbers, asked)
            first = None if touched is None else numbers[touched[0]]
        if first is not None:
            raise InvalidArgument(
                f"{self._owner}: the gradient of {self._parameters[first][0]} was scaled by "
                f"{differ[first]:.6g} since the last backward through compressed weights, theirs "
                f"by {wanted[first]:.6g}, expected one factor for all; to clip by layers or groups "
                "use opt.clip_grad_norm_(max_norm, parameters=[...]), and where a backward through "
                "ordinary parameters alone was added call it before the other"
            )

    def _factor(self, witness: int) -> float | None:
        """By how much a gradient was scaled; None if it was not, but edited or not known."""
        gradient, before = self._parameters[witness][1].grad, self._seen[witness]
        if not before or gradient is None:
            return None
        now = gradient.reshape(-1)[self._places[witness]].tolist()
        first, second = (a / b for a, b in zip(now, before, strict=True))
        if not math.isfinite(first) or not _close(first, second, _tolerance(gradient)):
            return None
        return first

    def _agree(self, witness: int, one: float, other: float) -> bool:
        return _close(one, other, _tolerance(self._parameters[witness][1].grad))


def _tolerance(gradient: torch.Tensor) -> float:
    return _TOLERANCE.get(gradient.dtype, 2e-2)


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))
