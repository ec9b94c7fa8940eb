"""Interface of a tier, which keeps the weights of a zeroth-order run and updates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.measurement import Measured, WeightSource
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.weights import TrainedWeight

Closure = Callable[[], Any]


@dataclass
class Training:
    """Model, options and weights that every tier is made with.

    `directions="auto"` means 1, or, in mode log, the number stored in the log or state that is
    being continued.
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
        """Tell whether the number of directions in a continued log or state is used."""
        return self.has_auto_directions and self.options.mode == "log"

    def take_directions(self, count: int) -> None:
        """Use the number of directions in a continued log or state, unless the user set one."""
        if self.takes_directions:
            self.options = self.options.with_directions(count)


class Tier(WeightSource, Protocol):
    """Gives halves their weights, and makes steps."""

    committed_steps: int

    @property
    def measured(self) -> Measured:
        """Return the subject of a measurement; valid after `begin`."""

    def rest(self) -> None:
        """Restore parameters whose data an interrupted forward has left replaced."""

    def begin(self, closures: Sequence[Closure]) -> None:
        """Begin a step: a measurement follows, and then `commit` or `abandon`."""

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Make the measured step, and write gamma into the groups."""

    def committing(self) -> AbstractContextManager:
        """Return a context for a commit and the bookkeeping after it."""

    def abandon(self) -> None:
        """Give the step up; the next one has the same number and noise."""

    def measuring(self) -> AbstractContextManager:
        """Return a context for a measurement."""

    def evaluate(self, closures: Sequence[Closure]) -> list[Any]:
        """Return the results of closures on the unperturbed weights."""

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's optimizer state, if it has a state."""

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Return the weights of a parameter in host memory."""

    def stats(self) -> dict[str, Any]:
        """Return numbers of the last step."""

    def close(self, theta: bool = True) -> None:
        """Turn the model into an ordinary one, with or without theta; idempotent."""
