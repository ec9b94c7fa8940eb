"""Units of a model at which halves meet, and the source of their perturbed weights."""

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
    """Perturbed weights of a parameter, one for each side."""

    parameter: nn.Parameter
    sides: Sequence[torch.Tensor | ImplicitMatrix]


class WeightSource(Protocol):
    """Makes perturbed copies of weights, which the halves of one direction share."""

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Copy the weights of a unit, whose forward begins; the copies last until `release`."""

    def release(self, unit: int, direction: int) -> None:
        """Free a unit's copies, after every half of the direction has left its forward."""

    def throughout(self, direction: int) -> list[Copies]:
        """Copy the weights that no single unit reads; the copies last for the measurement."""


@dataclass(frozen=True)
class Half:
    """One run of one closure, on one side of a direction."""

    name: str
    direction: int
    side: int
    closure: int


_SIGNS = ("+", "-")


def measuring_halves(directions: int, closures: int) -> list[Half]:
    """List the halves of a step: for each direction both sides, each with all closures."""
    return [
        Half(f"{_SIGNS[side]} of direction {d}{_of_closure(k, closures)}", d, side, k)
        for d in range(directions)
        for side in range(2)
        for k in range(closures)
    ]


def plain_halves(closures: int) -> list[Half]:
    """List one half per closure, on the weights themselves."""
    return [Half(f"closure {k}", 0, 0, k) for k in range(closures)]


def _of_closure(number: int, of: int) -> str:
    return f", closure {number}" if of > 1 else ""
