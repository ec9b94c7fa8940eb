"""Where the weights of a zeroth-order run are, and who moves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.halves.measurement import Measured
from sluiceway.optim.zo.halves.units import WeightSource
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.weights import TrainedWeight

Closure = Callable[[], Any]


@dataclass
class Training:
    """What every tier is made of.

    Directions that are auto are 1, or, in mode log, those of a log or a state that is gone on from.
    """

    owner: str  # The optimizer's name, for errors.
    model: nn.Module
    weights: list[TrainedWeight]
    options: ZoArguments
    device: DeviceOps
    param_groups: list[dict[str, Any]]  # The optimizer's own.
    has_auto_directions: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_auto_directions = self.options.directions == "auto"
        self.options = self.options.with_directions(self.options.direction_count)

    @property
    def takes_directions(self) -> bool:
        """Whether those of what is gone on from count."""
        return self.has_auto_directions and self.options.mode == "log"

    def take_directions(self, count: int) -> None:
        """Those of what is gone on from, if nobody says others."""
        if self.takes_directions:
            self.options = self.options.with_directions(count)


class Tier(WeightSource, Protocol):
    """Gives halves their weights, and makes steps."""

    committed_steps: int

    @property
    def measured(self) -> Measured:
        """What a measurement is of; after `begin`."""

    def rest(self) -> None:
        """Put back what an interrupted forward has left exchanged."""

    def begin(self, closures: Sequence[Closure]) -> None:
        """A measurement follows, and then `commit` or `abandon`."""

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Make the step that was measured, and write gamma into the groups."""

    def committing(self) -> AbstractContextManager:
        """Around a commit, and what is kept of it."""

    def abandon(self) -> None:
        """The step was not made; the next one is the same."""

    def measuring(self) -> AbstractContextManager:
        """Around a measurement."""

    def evaluate(self, closures: Sequence[Closure]) -> list[Any]:
        """What closures return on the weights themselves."""

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """What the optimizer's state of a parameter holds, if it has any."""

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """The weights of a parameter of the model, in host memory."""

    def stats(self) -> dict[str, Any]:
        """Of the last step."""

    def close(self, theta: bool = True) -> None:
        """Leave the model as any other, or without theta; idempotent."""
