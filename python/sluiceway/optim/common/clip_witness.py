"""Ordinary gradients that bear witness to how gradients were scaled.

Whoever clips scales the sentinel, and with it all compressed gradients, by one factor. If ordinary
gradients were scaled by others, gradients were clipped layer by layer or group by group, and the
sentinel's factor is that of one group only. A few numbers of a few gradients tell. On a device that
works beside Python they are read, all at once, only where the sentinel or a gradient has changed by
then: by torch's count of edits, which those of `.grad.data` are not in.
"""

from __future__ import annotations

import math
import weakref

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.mixed_modules import MixedModules

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
    asynchronous : bool
        As `DeviceOps` has it.
    """

    def __init__(
        self,
        owner: str,
        parameters: list[tuple[str, torch.Tensor]],
        modules: MixedModules,
        asynchronous: bool,
    ) -> None:
        large = [number for number, (_, p) in enumerate(parameters) if p.numel() >= 2]
        count = min(_WITNESSES, len(large))
        self._owner = owner
        # Spread over the whole depth of the model.
        self._numbers = [large[i * len(large) // count] for i in range(count)]
        self._parameters = [parameters[number] for number in self._numbers]
        self._modules = modules
        self._asynchronous = asynchronous
        # Looked for once, and again where they have vanished.
        self._places: list[torch.Tensor | None] = [None for _ in self._parameters]
        self._picked: list[torch.Tensor | None] = []
        self._seen: list[list[float]] | None = None  # What was picked; None: not read yet.
        # The gradients, and torch's counts of their edits.
        self._as_noted: list[tuple[weakref.ref[torch.Tensor], int] | None] = []

    def note(self) -> None:
        """Remember the gradients as they are."""
        self._picked = [self._pick(i, p.grad) for i, (_, p) in enumerate(self._parameters)]
        gradients = [p.grad for _, p in self._parameters]
        self._as_noted = [None if g is None else (weakref.ref(g), g._version) for g in gradients]
        self._seen = None
        if not self._asynchronous:
            self._see(_values(self._picked))

    def _pick(self, witness: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None or gradient.is_sparse:
            return None
        flat = gradient.reshape(-1)
        if self._places[witness] is None:
            self._places[witness] = flat.abs().topk(2).indices
        return flat[self._places[witness]]

    def _see(self, values: list[list[float]]) -> None:
        self._seen = [v if all(x != 0 and math.isfinite(x) for x in v) else [] for v in values]
        for witness, seen in enumerate(self._seen):
            if values[witness] and not seen:
                self._places[witness] = None

    def _unedited(self) -> bool:
        for (_, parameter), noted in zip(self._parameters, self._as_noted, strict=True):
            gradient = parameter.grad
            if noted is None or gradient is None:
                if noted is not None or gradient is not None:
                    return False
            elif noted[0]() is not gradient or noted[1] != gradient._version:
                return False
        return True

    def _read_now(self) -> list[list[float]]:
        """What was picked, as it is by now."""
        now = [
            None if picked is None or p.grad is None or places is None else self._pick(i, p.grad)
            for i, ((_, p), picked, places) in enumerate(
                zip(self._parameters, self._picked, self._places, strict=True)
            )
        ]
        if self._seen is not None:
            return _values(now)
        values = _values(self._picked + now)
        self._see(values[: len(now)])
        return values[len(now) :]

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
        unscaled = factor == of_frozen == 1.0
        if self._asynchronous and unscaled and self._unedited():
            return
        now = self._read_now()
        found = {i: self._factor(self._seen[i], now[i], i) for i in range(len(now))}
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

    def _factor(self, before: list[float], now: list[float], witness: int) -> float | None:
        """By how much a gradient was scaled; None if it was not, but edited or not known."""
        if not before or not now:
            return None
        first, second = (a / b for a, b in zip(now, before, strict=True))
        gradient = self._parameters[witness][1].grad
        if not math.isfinite(first) or not _close(first, second, _tolerance(gradient)):
            return None
        return first

    def _agree(self, witness: int, one: float, other: float) -> bool:
        return _close(one, other, _tolerance(self._parameters[witness][1].grad))


def _values(picked: list[torch.Tensor | None]) -> list[list[float]]:
    """Of all of them in one look; nothing where there is none."""
    there = [each.double() for each in picked if each is not None]
    values = iter(torch.stack(there).tolist() if there else [])
    return [[] if each is None else next(values) for each in picked]


def _tolerance(gradient: torch.Tensor) -> float:
    return _TOLERANCE.get(gradient.dtype, 2e-2)


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))
