"""What ZoSgd has of mode parity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.parity.parity_tier import ParityTier
from sluiceway.optim.zo.parity.weight_snapshot import WeightSnapshot
from sluiceway.optim.zo.tier import Tier


class Snapshots:
    """Weights and state of one step, while later ones are made."""

    options: ZoArguments
    _owner: str
    _tier: Tier
    _saved: Callable[[], dict[str, Any]]

    def snapshot(self) -> WeightSnapshot:
        """Weights and state of this step in mode parity, for another thread while steps go on.

        One at a time, and to be closed, also where nothing was read. Whoever looks at weights or
        loads some meanwhile waits until it was read or closed, and so does the step after the next:
        the thread that makes steps cannot be the one that reads.

        Raises
        ------
        InvalidArgument
            The mode is another one, a step is under way, or another snapshot.
        """
        if not isinstance(self._tier, ParityTier):
            raise InvalidArgument(
                f"{self._owner}.snapshot: mode is {self.options.mode!r} and tier "
                f"{self.options.tier!r}, expected mode 'parity'; call state_dict()"
            )
        return self._tier.snapshot(self._saved())

    def drop_snapshot(self) -> None:
        """Let nobody read the last snapshot any more, as where an interrupt has lost it."""
        if isinstance(self._tier, ParityTier):
            self._tier.drop_snapshot()
