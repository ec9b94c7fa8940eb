"""Methods of ZoSgd for weights that are streamed: older steps, new bases, snapshots, theta."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.base_on_disk import BaseOnDisk
from sluiceway.optim.zo.log_and_base import LogAndBase
from sluiceway.optim.zo.masters import Masters
from sluiceway.optim.zo.streamed_tier import StreamedTier
from sluiceway.optim.zo.tier import Tier
from sluiceway.optim.zo.weight_snapshot import WeightSnapshot


class WeightAccess:
    """Gives access to older steps, new bases, snapshots, and single weights."""

    options: ZoArguments
    _owner: str
    _tier: Tier
    _saved: Callable[[], dict[str, Any]]

    def rollback(self, step: int) -> None:
        """Continue from the weights of an older step; the log keeps the steps after it.

        Raises
        ------
        InvalidArgument
            There is no such step or no log, or the base of tier disk is later than the step.
        """
        self._logged("rollback").rollback(step)

    def branch(self, step: int, path: str | os.PathLike) -> None:
        """Write a log of the steps up to `step` into a folder, for another optimizer's `path`.

        Raises
        ------
        InvalidArgument
            There is no such step, or no log.
        """
        self._logged("branch").branch(step, path)

    def consolidate(self, step: int | None = None) -> int:
        """Write a new base of tier disk, from which later steps continue.

        Steps before the new base can no longer be reached.

        Parameters
        ----------
        step : int, optional
            Step whose weights the base gets. By default the latest possible: the step of the last
            `state_dict()` that was made or loaded, or else the last step.

        Returns
        -------
        int
            The step of the base.

        Raises
        ------
        InvalidArgument
            The base cannot have this step, or there is none on disk; nothing was changed.
        IoError
            The disk refused a request; nothing was changed.
        """
        return self._on_disk("consolidate").consolidate(step)

    def set_run_state(self, run: bytes) -> None:
        """Attach the bytes `run` to a base of the present step, to continue from the base itself.

        If you call this after every step, you need no `state_dict()` to continue: new bases may
        then have any step, and states that were saved before can no longer be continued.

        Raises
        ------
        InvalidArgument
            There is no base on disk.
        """
        self._on_disk("set_run_state").set_run_state(run)

    def run_state(self) -> bytes:
        """Return the bytes attached to the base; empty if there were none.

        Raises
        ------
        InvalidArgument
            There is no base on disk.
        """
        return self._on_disk("run_state").run_state

    @property
    def base_step(self) -> int:
        """Return the step of the base; earlier steps cannot be reached.

        Raises
        ------
        InvalidArgument
            There is no log.
        """
        return self._logged("base_step").base_step

    @property
    def has_new_store(self) -> bool:
        """Tell whether the store of tier disk was made from the model's weights, not opened."""
        return self._on_disk("has_new_store").is_new

    def theta(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the weights of one parameter in host memory, without a whole `state_dict()`."""
        return self._tier.theta(parameter)

    def snapshot(self) -> WeightSnapshot:
        """Return weights and state of this step, to be read by another thread during later steps.

        Only one snapshot may be open, and it must be closed even if nothing was read. Until it is
        read or closed, other readers and loads of weights wait, and so does the step after the
        next one: the thread that makes steps cannot be the one that reads.

        Raises
        ------
        InvalidArgument
            The mode is not write_back, a step is under way, or another snapshot is open.
        """
        weights = self._streamed()
        if not isinstance(weights, Masters):
            raise InvalidArgument(
                f"{self._owner}.snapshot: mode is {self.options.mode!r} and tier "
                f"{self.options.tier!r}, expected mode 'write_back'; call state_dict()"
            )
        return weights.snapshot(self._saved())

    def drop_snapshot(self) -> None:
        """Close the last snapshot, for instance if an interrupt has lost it."""
        weights = self._streamed()
        if isinstance(weights, Masters):
            weights.drop_snapshot()

    def _streamed(self) -> LogAndBase | Masters | None:
        return self._tier.weights if isinstance(self._tier, StreamedTier) else None

    def _logged(self, function: str) -> LogAndBase:
        weights = self._streamed()
        if isinstance(weights, LogAndBase):
            return weights
        raise InvalidArgument(
            f"{self._owner}.{function}: tier {self.options.tier!r} in mode {self.options.mode!r} "
            "has no log; use tier='host' or 'disk' with mode='log'"
        )

    def _on_disk(self, function: str) -> BaseOnDisk:
        weights = self._streamed()
        if isinstance(weights, BaseOnDisk):
            return weights
        raise InvalidArgument(
            f"{self._owner}.{function}: tier is {self.options.tier!r}, which has no store; use "
            "tier='disk'"
        )
