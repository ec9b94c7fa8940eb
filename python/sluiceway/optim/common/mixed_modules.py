"""Modules that hold compressed and ordinary parameters: what befalls the latter, befell both.

Compressed weights have no `.grad` to look at. Where something was done to every ordinary gradient
of such a module, it was done to the module.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class _Mixed:
    weight: str  # One of its compressed weights.
    ordinary: list[int]  # Numbers of its ordinary parameters.


class MixedModules:
    """Those of one model.

    Parameters
    ----------
    model : torch.nn.Module
    compressed, ordinary : list of (str, torch.Tensor)
    """

    def __init__(
        self,
        model: nn.Module,
        compressed: list[tuple[str, torch.Tensor]],
        ordinary: list[tuple[str, torch.Tensor]],
    ) -> None:
        names = {id(p): name for name, p in compressed}
        numbers = {id(p): number for number, (_, p) in enumerate(ordinary)}
        self._modules: list[_Mixed] = []
        for module in model.modules():
            inside = [id(p) for p in module.parameters()]
            weight = next((names[p] for p in inside if p in names), None)
            found = [numbers[p] for p in inside if p in numbers]
            if weight is not None and found:
                self._modules.append(_Mixed(weight, found))

    def touched(self, numbers: Collection[int], known: Collection[int]) -> tuple[int, str] | None:
        """Find a module all of whose `known` ordinary parameters are among `numbers`.

        Returns
        -------
        (int, str) or None
            One of its ordinary parameters, and one of its compressed weights.
        """
        if not numbers:
            return None
        for module in self._modules:
            of_module = [number for number in module.ordinary if number in known]
            if of_module and all(number in numbers for number in of_module):
                return of_module[0], module.weight
        return None
