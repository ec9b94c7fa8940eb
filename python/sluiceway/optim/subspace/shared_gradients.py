"""Averages the gradients of a step over ranks: cores, sums that residuals need, ordinary ones.

Cores cross in place of gradients where a weight has a core and no residual; otherwise whole
gradients do. An average of averages and new gradients is that of all of them, so averaging after
every backward is right, too; it is done after the last one if the optimizer was told their number.
"""

from __future__ import annotations

from typing import Any

import torch

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.engine_weights import EngineWeights
from sluiceway.optim.common.ordinary import OrdinaryParameters
from sluiceway.optim.common.ranks import Ranks
from sluiceway.optim.subspace.residual_gradients import ResidualGradients


class SharedGradients:
    """Gradients of one engine, its residuals, and the ordinary parameters beside it.

    In one process there is nothing to average, and no call does anything.

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
        self._counts: dict[int, int] = {}  # Gradients of a weight in this step.
        self._due = False  # A backward has ended since the last average, on all ranks.
        self._fresh: set[int] = set()  # Weights with a gradient since their last average.
        self._averaged: dict[int, tuple[int, int]] = {}  # Ordinary gradients as they were then.
        self.of_others: frozenset[int] = frozenset()  # Ids of parameters that a DDP averages.

    def added(self, weight: int) -> None:
        """Note a gradient of a weight."""
        self._counts[weight] = self._counts.get(weight, 0) + 1
        self._fresh.add(weight)

    def end_backward(self, given: set[int]) -> None:
        """Average after the last backward of a step, as far as its number is known."""
        self._due = True
        if max(self._counts.values(), default=0) >= self._expected:
            self.average(given)

    def forget(self) -> None:
        """Begin a new step: gradients were used or dropped."""
        self._counts, self._due, self._fresh, self._averaged = {}, False, set(), {}

    @property
    def is_late(self) -> bool:
        """Tell whether gradients came since they were averaged."""
        several = self.ranks.count > 1
        return several and (
            self._due or bool(self._fresh) or any(map(self._is_fresh, self._ordinary.named))
        )

    def _is_fresh(self, named: tuple[str, torch.Tensor]) -> bool:
        p = named[1]
        return (
            id(p) not in self.of_others
            and p.grad is not None
            and self._averaged.get(id(p)) != _as_it_is(p.grad)
        )

    def average(self, given: set[int], agreed: bool = False) -> None:
        """Average the gradients that came on some rank since the last average.

        Every rank calls it at the same places; `agreed` if all know that some came. Weights without
        a gradient on this rank get zeros if another rank has one.
        """
        if self.ranks.count == 1 or not (self._due or agreed):
            return
        self._due = False
        weights, ordinary = self._of_engine.weights, self._ordinary.named
        here = [index in self._fresh for index in range(len(weights))]
        here += map(self._is_fresh, ordinary)
        with torch.no_grad(), Undisturbed():  # The others may finish it, whoever is interrupted.
            fresh = [k for k, has in enumerate(self.ranks.any_of(here)) if has]
            of_weights = [k for k in fresh if k < len(weights)]
            for index in set(of_weights) - given:
                self._add_zeros(index)
                given.add(index)
            numbers = [n for k in reversed(of_weights) for n in self._of_engine.numbers(k)]
            parameters = [ordinary[k - len(weights)][1] for k in fresh if k >= len(weights)]
            self._average(numbers, parameters)
        self._fresh = set()

    def _average(self, numbers: list[int], parameters: list[torch.Tensor]) -> None:
        found, compute = [], self._device.compute()
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            found.append(p.grad)
        for number in numbers:
            core = self._engine.core(number, compute)
            found += [core] if core.numel() else []
            total = self._residuals.totals.get(number)
            found += [total.take()] if total is not None else []
        self.ranks.average(found)
        for number in numbers:
            self._engine.averaged(number)
        self._engine.end_backward()
        self._averaged |= {id(p): _as_it_is(p.grad) for p in parameters}

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
        if self.ranks.count == 1 or not self._engine.calibrates(number):
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


def _as_it_is(gradient: torch.Tensor) -> tuple[int, int]:
    """Return what changes if other code writes a gradient."""
    return gradient.data_ptr(), torch_private.version(gradient)
