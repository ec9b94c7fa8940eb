"""Numbers of the weights in an engine: each compressed weight, or each slice of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import TypeVar

import torch

from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private

T = TypeVar("T")


class EngineWeights:
    """Numbers weights like an engine: in the order of the model, slices one after the other."""

    def __init__(self, weights: list[CompressedWeight]) -> None:
        self.weights = weights
        self.names = [name for weight in weights for name in weight.names]
        starts = accumulate((len(weight.names) for weight in weights), initial=0)
        self._numbers = [range(first, end) for first, end in pairwise(starts)]

    def __len__(self) -> int:
        return len(self.names)

    def numbers(self, weight: int) -> range:
        """Return the engine's numbers of one compressed weight."""
        return self._numbers[weight]

    def tensors(self) -> list[torch.Tensor]:
        """Return the matrices for the lanes, without waiting for updates in flight.

        A weight that is away has an empty one. Raises InvalidArgument if a weight has a memory
        layout that lanes cannot use.
        """
        with torch_private.asking_no_class():
            for w in self.weights:
                if not w.away:
                    w.check_layout(w.parameter)
            return [m for w in self.weights for m in self._matrices(w)]

    @staticmethod
    def _matrices(weight: CompressedWeight) -> tuple[torch.Tensor, ...]:
        p = weight.parameter.detach()
        return (p.new_empty(1, 0),) if weight.away else weight.matrices(p)

    def increment_versions(self, weights: Iterable[int]) -> None:
        """Increment the versions of the compressed weights that change, for autograd."""
        with torch_private.asking_no_class():
            for index in weights:
                torch.autograd.graph.increment_version(self.weights[index].parameter)

    def spread(self, values: Iterable[T]) -> list[T]:
        """Repeat each compressed weight's value for all its weights in the engine."""
        pairs = zip(values, self._numbers, strict=True)
        return [value for value, numbers in pairs for _ in numbers]

    def joined(self, sizes: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Combine sums of squares and largest elements of matrices into one pair per weight."""
        parts = [sizes[numbers.start : numbers.stop] for numbers in self._numbers]
        return [(math.fsum(s for s, _ in part), _largest(a for _, a in part)) for part in parts]


def _largest(values: Iterable[float]) -> float:
    """Return the largest of some numbers, or NaN if one of them is NaN."""
    found = list(values)
    return math.nan if any(map(math.isnan, found)) else max(found)
