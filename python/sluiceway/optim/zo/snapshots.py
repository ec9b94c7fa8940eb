"""Methods of ZoSgd for mode write_back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.tier import Tier
from sluiceway.optim.zo.weight_snapshot import WeightSnapshot
from sluiceway.optim.zo.write_back_tier import WriteBackTier


class Snapshots:
    """Gives access to weights and state of one step while later steps are made."""

    options: ZoArguments
    _owner: str
    _tier: Tier
    _saved: Callable[[], dict[str, Any]]

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
        if not isinstance(self._tier, WriteBackTier):
            raise InvalidArgument(
                f"{self._owner}.snapshot: mode is {self.options.mode!r} and tier "
                f"{self.options.tier!r}, expected mode 'write_back'; call state_dict()"
            )
        return self._tier.snapshot(self._saved())

    def drop_snapshot(self) -> None:
        """Close the last snapshot, for instance if an interrupt has lost it."""
        if isinstance(self._tier, WriteBackTier):
            self._tier.drop_snapshot()
