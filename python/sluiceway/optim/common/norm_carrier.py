"""The gradients that stand in `.grad` of compressed weights, and what became of them.

After a backward torch has a gradient at every weight that got one, until somebody sets it to None.
Here a `NormGradient` stands there instead, at each of them, so that clipping, a scaler, zeroing and
freezing act on each weight by itself, as they do with gradients.

On a device that works beside Python a norm is known late. There norms are written when somebody
looks, and where nobody has looked, nobody has scaled either.
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
    """Puts norms into `.grad` of the weights of one optimizer, and reads back what changed.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    weights : list of CompressedWeight
    asynchronous : bool
        As `DeviceOps` has it.
    """

    def __init__(self, owner: str, weights: list[CompressedWeight], asynchronous: bool) -> None:
        self._owner, self._weights, self._asynchronous = owner, weights, asynchronous
        self.numbers: list[int] = []  # Weights at which torch has a gradient, or had one last.
        self._generation: Generation | None = None
        self._norms: Callable[[], list[float]] | None = None  # Not asked yet.
        self._zeros: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    # ---- In their places ----

    def place(
        self, taken: Collection[int], norms: Callable[[], list[float]], of_graph: bool = False
    ) -> None:
        """Let `.grad` of the weights in `taken`, and of those that had one, tell their norms.

        Parameters
        ----------
        taken : collection of int
            Numbers of weights.
        norms : callable
            Gives the norm of every weight.
        of_graph : bool
            A loss that is made of a `.grad` raises in its backward.
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
        """Let each tell its norm of these, times what it was scaled by since it was placed."""
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
        """Scale the gradients of some weights, as somebody else would."""
        for number, factor in factors.items():
            grad = self._parameter(number).grad
            if grad is not None:
                grad.mul_(factor)

    def settle(self) -> None:
        """Ask for the norms while they can be told; whoever looks later gets these."""
        if self._norms is not None:
            norms = self._norms()
            self._norms = lambda: norms

    def remove(self) -> None:
        """Take them away until the next `place()`: more gradients are to be gathered."""
        self._sort_out()
        for number in self.numbers:
            self._parameter(number).grad = None
        self._end()

    def forget(self) -> None:
        """Take them away for good."""
        self.remove()
        self.numbers = []

    def _end(self) -> None:
        if self._generation is not None:
            self._generation.write = None
        self._generation, self._norms = None, None

    def _sort_out(self) -> None:
        """Forget weights whose `.grad` somebody has set to None."""
        if self._generation is not None:
            self.numbers = [n for n in self.numbers if self._grad(n) is not None]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile none stands anywhere; gradients that come are others'."""
        kept = [(self._parameter(n), self._grad(n)) for n in self.numbers]
        for parameter, _ in kept:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient

    # ---- What became of them ----

    def _parameter(self, number: int) -> torch.Tensor:
        return self._weights[number].parameter

    def _grad(self, number: int) -> torch.Tensor | None:
        with torch_private.asking_no_class():
            return self._parameter(number).grad

    def stand(self) -> list[int]:
        """Numbers of weights at which one stands, or what somebody else has put there."""
        if self._generation is None:
            return []
        return [number for number in self.numbers if self._grad(number) is not None]

    def removed(self) -> bool:
        """Return whether somebody has taken all of them away: `model.zero_grad()`."""
        return not self.stand()

    def check_whole(self) -> None:
        """Refuse that some were removed, and others were not.

        Raises
        ------
        InvalidArgument
            One of either is named.
        """
        left = self.stand()
        lost = sorted(set(self.numbers) - set(left))
        if lost and left:
            raise InvalidArgument(
                f"{self._owner}: the gradient of {self._weights[lost[0]].name} was removed, that "
                f"of {self._weights[left[0]].name} was not, expected all or none, as compressed "
                "gradients cannot be removed one by one; freeze a part by requires_grad_(False) "
                "before the first forward of a step, or call opt.zero_grad() for all"
            )

    def check_own(self, *, earlier_alone: bool = False) -> None:
        """Refuse a `.grad` that is of no backward, or of an earlier one.

        Parameters
        ----------
        earlier_alone : bool
            Plain tensors may stand there: the backward that begins adds to them.

        Raises
        ------
        InvalidArgument
            The first weight is named.
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
        """Return the factor by which each was scaled since it was placed, by weight."""
        if self._norms is not None:
            return dict.fromkeys(self.stand(), 1.0)  # Nobody has looked.
        numbers = self.stand()
        cells = [self._grad(number).cell for number in numbers]
        found = torch.stack(cells)[:, 1].tolist() if cells else []
        return dict(zip(numbers, found, strict=True))

    def remains(self) -> bool:
        """Return whether one is left that nobody has removed, or made zero."""
        return any(factor != 0 for factor in self.factors().values())

    def zeroed(self) -> bool:
        """Return whether somebody made all of them zero: `model.zero_grad(set_to_none=False)`."""
        return bool(self.stand()) and not self.remains()


def _held(norm: float) -> float:
    """A norm as float32 can hold it; not finite only where a gradient is not."""
    return min(norm, _LARGEST) if norm < math.inf else norm
