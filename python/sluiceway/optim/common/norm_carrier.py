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
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.norm_gradient import Generation, NormGradient

_LARGEST = 3.4e38  # The largest norm that a cell holds in float32.
_ROOT_OF_LARGEST = 1.8e19


class NormCarrier:
    """Puts norms into `.grad` of one optimizer's weights, and reads back their factors.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    weights : list of CompressedWeight
    asynchronous : bool
        `DeviceOps.asynchronous` of the device.
    """

    def __init__(self, owner: str, weights: list[CompressedWeight], asynchronous: bool) -> None:
        self._owner, self._weights, self._asynchronous = owner, weights, asynchronous
        self.numbers: list[int] = []  # Weights that have a gradient in torch's sense.
        self._generation: Generation | None = None
        self._norms: Callable[[], list[float]] | None = None  # None once the norms are written.
        self._zeros: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    # ---- Placing norms ----

    def place(
        self, taken: Collection[int], norms: Callable[[], list[float]], of_graph: bool = False
    ) -> None:
        """Put norms into `.grad` of the weights in `taken` and of weights that had one before.

        Parameters
        ----------
        taken : collection of int
            Numbers of weights.
        norms : callable
            Returns the norm of every weight.
        of_graph : bool
            If True, a loss made from a `.grad` raises in its backward.
        """
        self.numbers = sorted({*self.numbers, *taken})
        if not self.numbers:
            return
        held = weakref.ref(self)

        def write(generation: Generation) -> None:
            carrier = held()
            if carrier is not None and generation is carrier._generation:
                carrier._write()

        device = self._parameter(self.numbers[0]).device
        cells = torch.zeros(len(self.numbers), 2, dtype=torch.float32, device=device)
        cells[:, 1] = 1.0
        generation = self._generation = Generation(cells, write)
        self._norms = norms
        if not self._asynchronous:
            generation.read()
        with torch_private.asking_no_class():
            for cell, number in zip(cells.unbind(), self.numbers, strict=True):
                p = self._parameter(number)
                kind = (p.grad_dtype or p.dtype, p.device)
                if kind not in self._zeros:
                    self._zeros[kind] = torch.zeros((), dtype=kind[0], device=kind[1])
                zero = self._zeros[kind]
                p.grad = NormGradient.of(zero, p.shape, number, generation, cell, of_graph)

    def _write(self) -> None:
        norms = self._norms()
        self._norms = None
        told = [_held(norms[number]) for number in self.numbers]
        self._generation.are_large = max(told) > _ROOT_OF_LARGEST
        self._generation.cells[:, 0] = torch.tensor(told)

    def tell_again(self, norms: Callable[[], list[float]]) -> None:
        """Replace the norms by new ones, times each weight's factor since `place()`."""
        factors = self.factors()
        if self._norms is not None:
            self._norms = norms
            return
        known = norms() if factors else []
        for number, factor in factors.items():
            norm = _held(known[number]) * abs(factor)
            self._generation.are_large |= norm > _ROOT_OF_LARGEST
            self._grad(number).cell[0] = norm

    def scale(self, factors: dict[int, float]) -> None:
        """Scale the gradients of some weights, as the user would."""
        for number, factor in factors.items():
            grad = self._parameter(number).grad
            if grad is not None:
                grad.mul_(factor)

    def settle(self) -> None:
        """Compute the norms while the engine has them, for code that reads them later."""
        if self._norms is not None:
            norms = self._norms()
            self._norms = lambda: norms

    def remove(self) -> None:
        """Remove the norms until the next `place()`, to gather more gradients."""
        self._sort_out()
        for number in self.numbers:
            self._parameter(number).grad = None
        self._end()

    def forget(self) -> None:
        """Remove the norms for good."""
        self.remove()
        self.numbers = []

    def _end(self) -> None:
        if self._generation is not None:
            self._generation.write = None
        self._generation, self._norms = None, None

    def _sort_out(self) -> None:
        """Forget weights whose `.grad` the user has set to None."""
        if self._generation is not None:
            self.numbers = [n for n in self.numbers if self._grad(n) is not None]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Set the norms aside inside the block, where gradients of another loss may come."""
        kept = [(self._parameter(n), self._grad(n)) for n in self.numbers]
        for parameter, _ in kept:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient

    # ---- Reading norms back ----

    def _parameter(self, number: int) -> torch.Tensor:
        return self._weights[number].parameter

    def _grad(self, number: int) -> torch.Tensor | None:
        with torch_private.asking_no_class():
            return self._parameter(number).grad

    def stand(self) -> list[int]:
        """Return the numbers of weights whose `.grad` has a norm, or a tensor of the user."""
        if self._generation is None:
            return []
        return [number for number in self.numbers if self._grad(number) is not None]

    def removed(self) -> bool:
        """Return whether the user has removed all norms, as `model.zero_grad()` does."""
        return not self.stand()

    def check_whole(self) -> None:
        """Refuse gradients of which some were removed and others were not.

        Raises
        ------
        InvalidArgument
            Names one removed gradient and one other.
        """
        left = self.stand()
        lost = sorted(set(self.numbers) - set(left))
        if lost and left:
            raise InvalidArgument(
                f"{self._owner}: the gradient of {self._weights[lost[0]].name} was removed, that "
                f"of {self._weights[left[0]].name} was not, but compressed gradients cannot be "
                "removed one by one; freeze a part by requires_grad_(False) before the first "
                "forward of a step, or call opt.zero_grad() for all"
            )

    def check_own(self, *, earlier_alone: bool = False) -> None:
        """Refuse a `.grad` that comes from no backward, or from an earlier one.

        Parameters
        ----------
        earlier_alone : bool
            If True, allow plain tensors, as the backward that begins adds to them.

        Raises
        ------
        InvalidArgument
            Names the first weight.
        """
        for number, weight in enumerate(self._weights):
            grad = self._grad(number)
            if grad is None or (earlier_alone and not isinstance(grad, NormGradient)):
                continue
            if not isinstance(grad, NormGradient):
                raise InvalidArgument(
                    f"{self._owner}: {weight.name} has a .grad that no backward() gave it, "
                    "expected None, or what backward() left there times a number; edit gradients "
                    "by register_hook()"
                )
            if grad.generation is not self._generation or grad.number != number:
                raise InvalidArgument(
                    f"{self._owner}: .grad of {weight.name} was put back after the compressed "
                    "gradients that it stood for were dropped or used; put no earlier .grad back, "
                    "or call backward() again"
                )

    def factors(self) -> dict[int, float]:
        """Return by weight the factor on each norm since `place()`."""
        if self._norms is not None:
            return dict.fromkeys(self.stand(), 1.0)  # No code has read the norms.
        numbers = self.stand()
        cells = [self._grad(number).cell for number in numbers]
        found = torch.stack(cells)[:, 1].tolist() if cells else []
        return dict(zip(numbers, found, strict=True))

    def remains(self) -> bool:
        """Return whether a norm is left that was neither removed nor zeroed."""
        return any(factor != 0 for factor in self.factors().values())

    def zeroed(self) -> bool:
        """Return whether the user has zeroed all: `model.zero_grad(set_to_none=False)`."""
        return bool(self.stand()) and not self.remains()


def _held(norm: float) -> float:
    """Return a norm that float32 can hold; it is not finite only if a gradient is not."""
    return min(norm, _LARGEST) if norm < math.inf else norm
