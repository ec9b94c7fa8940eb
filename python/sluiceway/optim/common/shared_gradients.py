"""Averages the gradients of a step over ranks: cores, sums that residuals need, ordinary ones.

Cores cross in place of gradients where a weight has a core and no residual; otherwise whole
gradients do. An average of averages and new gradients is that of all of them, so averaging after
every backward is right, too; it is done after the last one if the optimizer was told their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.common.engine_weights import EngineWeights
from sluiceway.optim.common.ordinary import OrdinaryParameters
from sluiceway.optim.common.ranks import Ranks

if TYPE_CHECKING:
    from sluiceway.optim.subspace.residual_gradients import ResidualGradients


class SharedGradients:
    """Gradients of one engine, its residuals, and the ordinary parameters beside it.

    Parameters
    ----------
    ranks : Ranks
    engine : SubspaceEngine
        Made with `shared=True`.
    backwards : int
        Number of backwards in a step; 0 if it is not known.
    given : set of int
        Weights that have a gradient here, to which weights are added that have one elsewhere.
    """

    def __init__(
        self,
        ranks: Ranks,
        engine: Any,
        of_engine: EngineWeights,
        residuals: ResidualGradients,
        ordinary: OrdinaryParameters,
        device: DeviceOps,
        backwards: int,
    ) -> None:
        self.ranks, self._engine, self._of_engine = ranks, engine, of_engine
        self._residuals, self._ordinary, self._device = residuals, ordinary, device
        self._expected = backwards
        self._backwards = 0
        self._due = False

    def end_backward(self, given: set[int]) -> None:
        """Average after the last backward of a step, as far as its number is known."""
        self._backwards += 1
        self._due = True
        if self._backwards >= self._expected:
            self.average(given)

    def forget(self) -> None:
        """Begin a new step: gradients were used or dropped."""
        self._backwards, self._due = 0, False

    def average(self, given: set[int]) -> None:
        """Average all gradients so far, unless that was done since the last backward.

        Every rank calls it at the same places. Weights without a gradient on this rank get zeros if
        another rank has one.
        """
        if not self._due:
            return
        self._due = False
        compute = self._device.compute()
        self._fill(given)
        numbers = [
            n for weight in sorted(given, reverse=True) for n in self._of_engine.numbers(weight)
        ]
        found = [g for _, p in self._ordinary.named if (g := p.grad) is not None]
        for number in numbers:
            core = self._engine.core(number, compute)
            found += [core] if core.numel() else []
            total = self._residuals.totals.get(number)
            found += [total.take()] if total is not None else []
        with torch.no_grad(), Undisturbed():  # The others may finish it, whoever is interrupted.
            self.ranks.average(found)
            for number in numbers:
                self._engine.averaged(number)
            self._engine.end_backward()

    def _fill(self, given: set[int]) -> None:
        """Give zeros to weights and parameters that have a gradient on other ranks alone."""
        weights, ordinary = self._of_engine.weights, self._ordinary.named
        here = [index in given for index in range(len(weights))]
        here += [p.grad is not None for _, p in ordinary]
        missing = {k for k, has in enumerate(self.ranks.any_of(here)) if has and not here[k]}
        for index in sorted(missing):
            if index < len(weights):
                self._add_zeros(index)
                given.add(index)
            else:
                p = ordinary[index - len(weights)][1]
                p.grad = torch.zeros_like(p)

    def _add_zeros(self, index: int) -> None:
        weight, compute = self._of_engine.weights[index], self._device.compute()
        p = weight.parameter
        zeros = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
        matrices = weight.matrices(zeros)
        for number, matrix in zip(self._of_engine.numbers(index), matrices, strict=True):
            self._engine.add_gradient(number, matrix, matrix, compute)
            if self._engine.keeps_total(number):
                self._residuals.keep(number, matrix)

    def calibrate(self, number: int, gradient: torch.Tensor) -> None:
        """Fit or measure projectors on the average of a gradient, if they are due.

        Raises
        ------
        InvalidArgument
            The ranks have gradients of different weights at this moment.
        """
        if not self._engine.calibrates(number):
            return
        name = self._of_engine.names[number]
        for rank, theirs in enumerate(self.ranks.gather(name)):
            if theirs != name:
                raise InvalidArgument(
                    f"rank {rank} has a gradient of {theirs} where rank {self.ranks.rank} has one "
                    f"of {name}, but projectors are fitted to the average over ranks; take a codec "
                    "that is not fitted, such as block_random"
                )
        mean = gradient.clone()
        self.ranks.average([mean])
        self._engine.calibrate_on(number, mean, self._device.compute())
