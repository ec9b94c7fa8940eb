"""Puts a `NormGradient` into `.grad` of compressed weights, and reads back what the user changed.

After a backward torch leaves a gradient in `.grad` of each weight until the user sets it to None.
The carrier puts a `NormGradient` there instead, so that clipping, a scaler, zeroing and freezing
act on each weight by itself, as they do with gradients.

On an asynchronous device a norm is known late. There a norm is written when code first reads it,
and as long as no code has read the norms, no code has scaled them either.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.norm_gradient import Generation, NormGradient

_LARGEST = 3.4e38  # The largest norm that a cell holds in float32.
_ROOT_OF_LARGEST = 1.8e19
_NEAR_ONE = 1e-6  # A factor that differs from 1 by less counts as 1.


class NormCarrier:
    """Puts norms into `.grad` of one optimizer's weights, and reads back their factors.

    Every check raises InvalidArgument with the name of the first weight that is wrong.
    """

    def __init__(self, owner: str, weights: list[CompressedWeight], asynchronous: bool) -> None:
        self._owner, self._asynchronous = owner, asynchronous
        self._names = [weight.name for weight in weights]
        self._parameters = [weight.parameter for weight in weights]
        self.numbers: list[int] = []  # Weights that have a gradient in torch's sense.
        self._generation: Generation | None = None
        self._norms: Callable[[], list[float]] | None = None  # None once the norms are written.

    # ---- Placing norms ----

    def place(
        self, taken: Collection[int], norms: Callable[[], list[float]], of_graph: bool = False
    ) -> None:
        """Put norms into `.grad` of the weights in `taken` and of weights that had one before.

        `norms` returns the norm of every weight. If `of_graph`, a loss made from a `.grad` raises
        in its backward.
        """
        self.numbers = sorted({*self.numbers, *taken})
        if not self.numbers:
            return
        held = weakref.ref(self)

        def write(generation: Generation) -> None:
            carrier = held()
            if carrier is not None and generation is carrier._generation:
                carrier._write()

        device = self._parameters[self.numbers[0]].device
        cells = torch.zeros(len(self.numbers), 2, dtype=torch.float32, device=device)
        cells[:, 1] = 1.0
        generation = self._generation = Generation(cells, write)
        self._norms = norms
        if not self._asynchronous:
            generation.read()
        zeros: dict[tuple[torch.dtype, torch.Size], torch.Tensor] = {}
        with torch_private.asking_no_class():
            for row, number in enumerate(self.numbers):
                p = self._parameters[number]
                kind = (p.grad_dtype or p.dtype, p.shape)
                if kind not in zeros:
                    zeros[kind] = torch.zeros((), dtype=kind[0], device=device).expand(p.shape)
                p.grad = NormGradient.of(
                    zeros[kind],
                    {"number": number, "generation": generation, "row": row, "of_graph": of_graph},
                )

    def _write(self) -> None:
        norms = self._norms()
        self._norms = None
        known = [_held(norms[number]) for number in self.numbers]
        self._generation.are_large = max(known) > _ROOT_OF_LARGEST
        self._generation.cells[:, 0] = torch.tensor(known)

    def tell_again(self, norms: Callable[[], list[float]]) -> None:
        """Replace the norms by new ones, multiplied by each weight's factor since `place()`."""
        factors = self.factors()
        if self._norms is not None:
            self._norms = norms
            return
        known = norms() if factors else []
        for number, factor in factors.items():
            norm = _held(known[number]) * abs(factor)
            self._generation.are_large |= norm > _ROOT_OF_LARGEST
            self._grads([number])[0].cell[0] = norm

    def scale(self, numbers: Iterable[int], factor: float) -> None:
        """Scale the gradients of some weights, as the user would."""
        for gradient in self._grads(numbers):
            gradient.mul_(factor)

    def settle(self) -> None:
        """Compute the norms now, while the engine has them, for code that reads them later."""
        if self._norms is not None:
            norms = self._norms()
            self._norms = lambda: norms

    def remove(self) -> None:
        """Remove the norms until the next `place()`, to gather more gradients."""
        if self._generation is not None:  # The user may have set some to None.
            self.numbers = self.stand()
            self._generation.write = None
        with torch_private.asking_no_class():
            for number in self.numbers:
                self._parameters[number].grad = None
        self._generation, self._norms = None, None

    def forget(self) -> None:
        """Remove the norms for good."""
        self.remove()
        self.numbers = []

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Set the norms aside inside the block, where gradients of another loss may come."""
        parameters = [self._parameters[number] for number in self.numbers]
        kept = list(zip(parameters, self._grads(self.numbers), strict=True))
        for parameter, _ in kept:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient

    # ---- Reading norms back ----

    def _grads(self, numbers: Iterable[int]) -> list[torch.Tensor | None]:
        with torch_private.asking_no_class():
            return [self._parameters[number].grad for number in numbers]

    def stand(self) -> list[int]:
        """Return the numbers of weights whose `.grad` has a norm, or a tensor of the user."""
        if self._generation is None:
            return []
        pairs = zip(self.numbers, self._grads(self.numbers), strict=True)
        return [number for number, gradient in pairs if gradient is not None]

    def remains(self) -> bool:
        """Return whether `.grad` of some weight has a norm that was neither removed nor zeroed."""
        return any(factor != 0 for factor in self.factors().values())

    def was_unscaled(self) -> bool:
        """Return whether a GradScaler has unscaled the gradients since `place()`."""
        return self._generation is not None and self._generation.was_unscaled

    def factors(self) -> dict[int, float]:
        """Return by weight the factor on each norm since `place()`; 1 for a tensor of the user."""
        numbers = self.stand()
        if self._norms is not None or not numbers:  # No code has read the norms.
            return dict.fromkeys(numbers, 1.0)
        pairs = zip(numbers, self._grads(numbers), strict=True)
        norms = {number: g for number, g in pairs if isinstance(g, NormGradient)}
        # One copy from the device for all of them.
        if all(g.own_cell is None and g.generation is self._generation for g in norms.values()):
            shared = self._generation.cells[:, 1].tolist()
            known = {number: shared[g.row] for number, g in norms.items()}
        else:
            cells = torch.stack([g.cell for g in norms.values()])
            known = dict(zip(norms, cells[:, 1].tolist(), strict=True))
        return {**dict.fromkeys(numbers, 1.0), **known}

    def split_factors(self) -> tuple[float, list[float]]:
        """Return the common factor of all gradients, and each weight's further factor, if any."""
        found = self.factors()
        shared = max(found.values(), key=abs, default=1.0)
        if all(factor == shared for factor in found.values()) or not math.isfinite(shared):
            return shared, []
        own = [1.0] * len(self._parameters)
        for number, factor in found.items():
            own[number] = factor / shared
        return shared, own

    # ---- Checks ----

    def check_whole(self) -> None:
        """Refuse gradients of which some were removed and others were not."""
        left = self.stand()
        lost = sorted(set(self.numbers) - set(left))
        if lost and left:
            raise InvalidArgument(
                f"{self._owner}: the gradient of {self._names[lost[0]]} was removed, that of "
                f"{self._names[left[0]]} was not, but compressed gradients cannot be removed one "
                "by one; freeze a part by requires_grad_(False) before the first forward of a "
                "step, or call opt.zero_grad() for all"
            )

    def check_own(self, *, earlier_alone: bool = False) -> None:
        """Refuse a `.grad` that comes from no backward, or from an earlier one.

        If `earlier_alone`, allow plain tensors that replace no norm, as the backward that begins
        adds to them.
        """
        placed = set(self.numbers) if self._generation is not None else set()
        gradients = self._grads(range(len(self._parameters)))
        for number, (name, grad) in enumerate(zip(self._names, gradients, strict=True)):
            if grad is None:
                continue
            if not isinstance(grad, NormGradient):
                if earlier_alone and number not in placed:
                    continue
                raise InvalidArgument(
                    f"{self._owner}: {name} has a .grad that no backward() gave it, expected None, "
                    "or what backward() left there times a number; edit gradients by "
                    "register_hook()"
                )
            if grad.generation is not self._generation or grad.number != number:
                raise InvalidArgument(
                    f"{self._owner}: .grad of {name} was put back after the compressed gradients "
                    "that it stood for were dropped or used; put no earlier .grad back, or call "
                    "backward() again"
                )

    def check_unscaled(self) -> None:
        """Refuse a scaling before the last backward of a step, which cores cannot follow."""
        for number, factor in self.factors().items():
            if math.isfinite(factor) and abs(factor - 1.0) > _NEAR_ONE:
                raise InvalidArgument(
                    f"{self._owner}: the gradient of {self._names[number]} was scaled by "
                    f"{factor:.6g} between two backwards of one step; scale and clip after the "
                    "last backward, just before step()"
                )

    def check_given(self, given: Collection[int]) -> None:
        """Refuse norms of weights that have no gradient in this step."""
        for number in self.stand():
            if number not in given:
                raise InvalidArgument(
                    f"{self._owner}.step: {self._names[number]} has no gradient in this step, but "
                    "a zero gradient from before, on which AdamW would train it; call "
                    "zero_grad(set_to_none=True)"
                )


def _held(norm: float) -> float:
    """Return a norm that float32 can hold; it is not finite only if a gradient is not."""
    return min(norm, _LARGEST) if norm < math.inf else norm
