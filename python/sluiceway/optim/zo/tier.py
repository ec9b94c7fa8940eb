"""Interface of a tier, which keeps the weights of a zeroth-order run and updates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sluiceway.machine.device_ops import DeviceOps
from sluiceway.model.blocks import BlockList
from sluiceway.optim.common.ranks import Ranks
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.measurement import Copies, Measured
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.weights import TrainedWeight

Closure = Callable[[], Any]
States = dict[torch.Tensor, dict[str, Any]]


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
    ranks: Ranks
    has_auto_directions: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_auto_directions = self.options.directions == "auto"
        self.options = self.options.with_directions(self.options.direction_count)

    @property
    def measured_directions(self) -> list[int]:
        """Numbers of the directions that this process measures in each step."""
        every = list(range(self.options.directions))
        if self.options.across_ranks == "batch":
            return every
        return every[self.ranks.rank :: self.ranks.count]

    @property
    def may_change_directions(self) -> bool:
        """Tell whether the number of directions in a continued log or state is used."""
        return self.has_auto_directions and self.options.mode == "log"

    def use_directions(self, count: int) -> None:
        """Use the number of directions in a continued log or state, unless the user set one."""
        if self.may_change_directions:
            self.options = self.options.with_directions(count)


class Tier:
    """Gives forward passes their weights, and makes steps. Tiers override what they need.

    Attributes
    ----------
    committed_steps : int
        Number of steps made so far.
    measured : Measured
        Subject of a measurement; valid after `begin`.
    blocks : BlockList or None
        Blocks at which forward passes meet, if they meet at blocks.
    """

    committed_steps: int
    measured: Measured
    blocks: BlockList | None = None

    # ---- Weights of a measurement ----

    def acquire(self, unit: int, direction: int) -> list[Copies]:
        """Copy the weights of a unit, which all forward passes of a direction share.

        Here and below a direction is its place among those that this process measures.
        """

    def release(self, unit: int, direction: int) -> None:
        """Free a unit's copies, after every forward pass of the direction has left it."""

    def throughout(self, direction: int) -> list[Copies]:
        """Copy the weights that no single unit reads; the copies last for the measurement."""

    # ---- Steps ----

    def rest(self) -> None:
        """Restore parameters whose data an interrupted forward has left replaced."""

    def begin(self, closures: Sequence[Closure]) -> None:
        """Begin a step: a measurement follows, and then `commit` or `abandon`."""

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Make the measured step, and write gamma into the groups."""

    def committing(self) -> AbstractContextManager:
        """Return a context for a commit and the bookkeeping after it.

        By default it is empty: a commit may wait for a lane, and Ctrl-C ends that.
        """
        return nullcontext()

    def abandon(self) -> None:
        """Abandon the step; the next step has the same number and noise."""

    def measuring(self) -> AbstractContextManager:
        """Return a context for a measurement."""
        return nullcontext()

    def evaluate(self, closures: Sequence[Closure]) -> list[Any]:
        """Return the results of closures on the unperturbed weights."""

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Return the weights of a parameter in host memory."""

    def stats(self) -> dict[str, Any]:
        """Return numbers of the last step, if any bytes crossed a link."""
        return {}

    def close(self, theta: bool = True) -> None:
        """Turn the model into an ordinary one, with or without theta; idempotent."""

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's optimizer state, if it has a state."""

    def before_state(self) -> None:
        """Bring the optimizer's state to the last step, before it is saved between steps."""

    def saved(self) -> dict[str, Any]:
        """Return what a saved state has beside the optimizer's own entries."""
        return {}

    def check_saved(
        self, frame: dict[str, Any], states: States, changed: list[TrainedWeight]
    ) -> None:
        """Check that a saved state belongs here; nothing is changed.

        Parameters
        ----------
        frame : dict
            The entries that ZoSgd adds to torch's.
        states : dict
            The state of each parameter, whose shapes are right.
        changed : list of TrainedWeight
            Weights that other code has written to since the last step or the last state.

        Raises
        ------
        InvalidArgument
            It does not belong here; the text says why.
        """

    def load(self, frame: dict[str, Any], states: States) -> None:
        """Continue from a checked state; the parameter groups are loaded afterwards."""

    def groups_loaded(self) -> None:
        """Adjust to the loaded parameter groups."""
