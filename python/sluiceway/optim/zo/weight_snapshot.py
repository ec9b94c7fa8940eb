"""Weights and state of one step, which another thread reads while steps go on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument

if TYPE_CHECKING:
    from sluiceway.optim.zo.masters import Masters


class WeightSnapshot:
    """Weights and state of one step, returned by `ZoSgd.snapshot`.

    Masters are not copied. A master can be read once the next pass has written the step into it,
    and the pass after that waits before it overwrites a master that was not read. Call `close`
    when you have read enough, or give up.

    Parameters
    ----------
    taken : sluiceway._core.ZoSnapshot
    state : dict
        The optimizer's state. Its masters have the snapshot's step only inside of `reading`.
    masters : Masters
    numbers : dict
        Number of each weight by the parameter's id.
    """

    def __init__(
        self, taken: _core.ZoSnapshot, state: dict[str, Any], masters: Masters,
        numbers: dict[int, int],
    ) -> None:  # fmt: skip
        self._taken, self.state, self._masters, self._numbers = taken, state, masters, numbers
        weakref.finalize(self, taken.close)  # A lost snapshot must not delay steps.

    @property
    def step(self) -> int:
        """Number of steps that the weights contain."""
        return self._taken.step

    def has(self, p: torch.Tensor) -> bool:
        """Tell whether steps are written into a parameter."""
        return id(p) in self._numbers

    def has_image(self, p: torch.Tensor) -> bool:
        """Tell whether a parameter is only the image of its master, which is in `state`."""
        return self.has(p) and self._masters.has_image(p)

    def master(self, p: torch.Tensor) -> torch.Tensor:
        """Return the master, which may have any step outside of `reading`."""
        return self._masters.kept(p)

    @contextlib.contextmanager
    def reading(self, p: torch.Tensor) -> Iterator[torch.Tensor]:
        """Wait for theta of a parameter and yield it; call this once for each parameter.

        For a parameter that is its own master, the master is yielded, and stays unchanged until
        the block ends.

        Raises
        ------
        Error
            A lane failed, or other code has written to the weights; do not use what was read.
        """
        number = self._numbers[id(p)]
        self._taken.wait(number)
        master = self.master(p)
        yield self._masters.made(p, master) if self.has_image(p) else master.detach()
        self._taken.let_go(number)

    def finish(self, seconds: float | None = None) -> bool:
        """Wait until all was read, at most `seconds`, and tell whether it was.

        Call this on the thread that makes steps. Weights that no pass has brought up to date are
        brought up to date first, so that the reader can continue.
        """
        try:
            return self._masters.finish_snapshot(seconds)
        except InvalidArgument:  # A pass has failed and cannot be ended.
            self.close()
            raise

    def close(self) -> None:
        """End the snapshot: nothing is read any more. Idempotent."""
        self._taken.close()
