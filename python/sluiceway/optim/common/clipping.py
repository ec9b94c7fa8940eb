"""How gathered gradients are scaled until a step: by others, through the sentinel, or by weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.optim.common.clip_witness import ClipWitness
from sluiceway.optim.common.mixed_modules import MixedModules
from sluiceway.optim.common.norm_carrier import Carriers
from sluiceway.optim.common.ordinary import gradient_norms
from sluiceway.optim.common.parameters import check_number


class Clipping:
    """The factors of compressed gradients, and clipping by norm where the gradients are.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    carriers : Carriers
        Told of every scaling, so that torch's own functions see the norm that there is.
    count : int
        Of compressed weights.
    ordinary : list of (str, torch.Tensor)
        Parameters whose gradients are in `.grad`.
    modules : MixedModules
    asynchronous : bool
        As `DeviceOps` has it.
    """

    def __init__(
        self,
        owner: str,
        carriers: Carriers,
        count: int,
        ordinary: list[tuple[str, torch.Tensor]],
        modules: MixedModules,
        asynchronous: bool,
    ) -> None:
        self._owner = owner
        self._carriers = carriers
        self._count = count
        self._witness = ClipWitness(owner, ordinary, modules, asynchronous)
        # What the sentinel has told before it was placed anew, and what each weight has beside it;
        # empty: nothing.
        self._shared = 1.0
        self._own: list[float] = []
        self.of_graph = False  # The gradients come of backward(create_graph=True).

    def begin(self, norm: Callable[[], float], norms: Callable[[], list[float]]) -> None:
        """Gradients were gathered, that nothing has scaled: their common norm, and that of each."""
        self._shared, self._own = 1.0, []
        self._carriers.place(norm, norms, self.of_graph)
        self._witness.note()

    def factors(self) -> tuple[float, list[float]]:
        """What all compressed gradients were scaled by, and each beside it; empty: by nothing.

        Raises
        ------
        InvalidArgument
            A sentinel was not scaled as a whole, or ordinary gradients by another factor.
        """
        found = self._carriers.factors()
        self._witness.check(found[0], found[-1])
        return self._beside(found)

    def _beside(self, found: list[float]) -> tuple[float, list[float]]:
        """The factors of each weight, by those that the sentinels have."""
        trained, frozen = found[0], found[-1]
        if trained == frozen:
            return self._shared * trained, self._own
        shared = trained or frozen
        parts = (trained / shared, frozen / shared)
        own = self._own or [1.0] * self._count
        return self._shared * shared, [
            o * parts[number in self._carriers.frozen] for number, o in enumerate(own)
        ]

    def check_unscaled(self) -> None:
        """Refuse a scaling before the last backward of a step: cores cannot follow it."""
        shared, own = self._beside(self._carriers.factors())
        for factor in [shared, *(shared * each for each in own)]:
            if math.isfinite(factor) and abs(factor - 1.0) > 1e-6:
                raise InvalidArgument(
                    f"{self._owner}: gradients were scaled by {factor:.6g} between two backwards "
                    "of one step, expected scaling after the last one; clip just before step()"
                )

    def clip(
        self,
        sizes: list[tuple[float, float]],
        weights: set[int],
        gradients: list[torch.Tensor],
        max_norm: float,
        order: float,
        scale: float,
    ) -> float:
        """Clip some gradients by their common norm, and return that.

        Parameters
        ----------
        sizes : list of (float, float)
            Sum of squares and largest element of each compressed gradient as it was gathered;
            empty if there is none.
        weights : set of int
            Numbers of the compressed ones to clip.
        gradients : list of torch.Tensor
            The others to clip.
        max_norm : float
        order : float
            2 or inf.
        scale : float
            Undoes a loss scale that all gradients have.
        """
        shared, own = self.factors() if sizes else (1.0, [])
        factors = [shared * factor for factor in own or [1.0] * len(sizes)]
        norms = [f * math.sqrt(squares) for f, (squares, _) in zip(factors, sizes, strict=True)]
        largest = [f * size for f, (_, size) in zip(factors, sizes, strict=True)]
        chosen = [(norms if order == 2 else largest)[i] for i in sorted(weights) if sizes]
        chosen += gradient_norms(gradients, order).tolist()
        total = scale * torch.tensor([0.0, *chosen], dtype=torch.float64).norm(order).item()
        if not math.isfinite(total):
            return total  # Such a step is skipped, whatever the gradients are scaled by.
        factor = min(1.0, max_norm / (total + 1e-6))
        for gradient in gradients:
            gradient.mul_(factor)
        if sizes:
            clipped = [factor if i in weights else 1.0 for i in range(len(sizes))]
            left = [n * c for n, c in zip(norms, clipped, strict=True)]
            self.begin(lambda: math.hypot(*left), lambda: left)
            self._shared = shared
            self._own = [o * c for o, c in zip(own or [1.0] * len(sizes), clipped, strict=True)]
        return total


def check_clipping(owner: str, max_norm: Any, norm_type: Any, configured: float | None) -> float:
    """Refuse what cannot be clipped by; return the order of the norm as a number.

    Raises
    ------
    InvalidArgument, Unavailable
    """
    caller = f"{owner}.clip_grad_norm_"
    check_number(caller, "max_norm", max_norm)
    if configured is not None:
        raise InvalidArgument(
            f"{caller}: max_norm={configured:g} of the constructor clips in step() already, "
            "expected one of the two; make the optimizer without it"
        )
    try:
        order = float(norm_type)
    except (TypeError, ValueError):
        order = math.nan
    if order not in (2.0, math.inf):
        raise Unavailable(
            f"{caller}: norm_type is {norm_type!r}, this version has 2 and inf, as of a compressed "
            "gradient only squares and the largest element are known"
        )
    return order


def split_parameters(
    owner: str, parameters: Iterable[torch.Tensor] | torch.Tensor, compressed: list[torch.Tensor]
) -> tuple[set[int], list[torch.Tensor]]:
    """Numbers of the compressed ones among `parameters`, and the gradients of the others."""
    number_of = {id(p): i for i, p in enumerate(compressed)}
    numbers, gradients = set(), {}
    for p in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
        if not isinstance(p, torch.Tensor):
            raise InvalidArgument(
                f"{owner}.clip_grad_norm_: parameters holds a {type(p).__name__}, expected "
                "parameters of the model"
            )
        if id(p) in number_of:
            numbers.add(number_of[id(p)])
        elif p.grad is not None:
            gradients[id(p)] = p.grad
    return numbers, list(gradients.values())
