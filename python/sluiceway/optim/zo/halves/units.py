"""What halves meet at, and where they get its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import nn

from sluiceway.optim.zo.halves.substitution import ImplicitMatrix


@dataclass(frozen=True)
class Unit:
    """A module that is perturbed while its forward runs."""

    label: str  # For errors: "block layers.1".
    module: nn.Module


class Copies(NamedTuple):
    """What stands for a parameter, on each side."""

    parameter: nn.Parameter
    sides: Sequence[torch.Tensor | ImplicitMatrix]


class WeightSource(Protocol):
    """Makes copies of weights. Halves of one direction share them."""

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Of the weights of a unit, whose forward is entered: they last until `release`."""

    def release(self, unit: int, direction: int) -> None:
        """Every half of the direction has left the unit's forward."""

    def throughout(self, direction: int) -> list[Copies]:
        """Of weights that no single unit reads: they last as long as the measurement."""


@dataclass(frozen=True)
class Half:
    """One run of one closure."""

    name: str
    direction: int
    side: int
    closure: int


_SIGNS = ("+", "-")


def measuring_halves(directions: int, closures: int) -> list[Half]:
    """Both sides of each direction, of all closures: one direction after the other."""
    return [
        Half(f"{_SIGNS[side]} of direction {d}{_of_closure(k, closures)}", d, side, k)
        for d in range(directions)
        for side in range(2)
        for k in range(closures)
    ]


def plain_halves(closures: int) -> list[Half]:
    """All closures on the weights themselves."""
    return [Half(f"closure {k}", 0, 0, k) for k in range(closures)]


def _of_closure(number: int, of: int) -> str:
    return f", closure {number}" if of > 1 else ""
