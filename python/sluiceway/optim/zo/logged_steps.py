"""What ZoSgd has of tiers whose steps are records of a log."""

from __future__ import annotations

import os

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.disk.disk_tier import DiskTier
from sluiceway.optim.zo.host.host_tier import HostTier
from sluiceway.optim.zo.tier import Tier


class LoggedSteps:
    """Older steps, new bases, and weights one by one."""

    options: ZoArguments
    _owner: str
    _tier: Tier

    def rollback(self, step: int) -> None:
        """Go on from the weights of an older step; the log keeps what came after it.

        Raises
        ------
        InvalidArgument
            There is no such step, or no log; or the base of tier disk is of a later one.
        """
        self._logged("rollback").rollback(step)

    def branch(self, step: int, path: str | os.PathLike) -> None:
        """Write a log of the steps up to `step` into a folder, for another optimizer's `path`.

        Raises
        ------
        InvalidArgument
            There is no such step, or no log.
        """
        self._logged("branch").log.branch(step, path)

    def consolidate(self, step: int | None = None) -> int:
        """Write a new base of tier disk, from which steps go on; nothing leads back from it.

        Parameters
        ----------
        step : int, optional
            Whose weights it is to hold. The last one that it may, where nothing is said: that of
            the last `state_dict()` that was made or loaded, and without one the last that was made.

        Returns
        -------
        int
            The step that the base is of now.

        Raises
        ------
        InvalidArgument
            The base cannot be of this step, or there is none on disk; nothing was changed.
        IoError
            The disk refused; likewise.
        """
        return self._on_disk("consolidate").consolidate(step)

    def set_run_state(self, run: bytes) -> None:
        """Let a base of the present step carry `run`, for who then goes on from the base itself.

        Whoever gives it after every step needs no `state_dict()` for that: new bases are then of
        whatever step, and leave behind what was saved before.

        Raises
        ------
        InvalidArgument
            There is no base on disk.
        """
        self._on_disk("set_run_state").set_run_state(run)

    def run_state(self) -> bytes:
        """What the base carries; empty where it was made with nothing.

        Raises
        ------
        InvalidArgument
            There is no base on disk.
        """
        return self._on_disk("run_state").store.run_state

    @property
    def base_step(self) -> int:
        """The step that the base is of; nothing leads back to those before.

        Raises
        ------
        InvalidArgument
            There is no log.
        """
        tier = self._logged("base_step")
        return tier.store.step if isinstance(tier, DiskTier) else 0

    @property
    def has_new_store(self) -> bool:
        """Whether the store of tier disk was made of the model's weights, and not opened."""
        return self._on_disk("has_new_store").store.is_new

    def theta(self, parameter: nn.Parameter) -> torch.Tensor:
        """One parameter's weights in host memory, where `state_dict()` of the model has all."""
        return self._tier.theta(parameter)

    def _logged(self, function: str) -> HostTier:
        if isinstance(self._tier, HostTier):
            return self._tier
        raise InvalidArgument(
            f"{self._owner}.{function}: tier is {self.options.tier!r} and mode "
            f"{self.options.mode!r}, which has no log, expected tier='host' or 'disk' in mode 'log'"
        )

    def _on_disk(self, function: str) -> DiskTier:
        if isinstance(self._tier, DiskTier):
            return self._tier
        raise InvalidArgument(
            f"{self._owner}.{function}: tier is {self.options.tier!r}, whose weights are in no "
            "store, expected tier='disk'"
        )
