"""Weights and state of one step, which another thread reads while steps go on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.parity.master_base import MasterBase


class WeightSnapshot:
    """What `ZoSgd.snapshot` returns.

    Masters are not copied. Each is there when the next pass has brought the step into it, and the
    pass after waits before it writes to one that was not read. Whoever has read what is needed, or
    gives up, says so by `close`.

    Parameters
    ----------
    taken : sluiceway._core.ZoSnapshot
    state : dict
        The optimizer's. A master within is of the step while it is `reading`, and then alone.
    base : MasterBase
    numbers : dict
        Of each weight, by the parameter's id.
    made : callable
        What a forward reads, of a parameter and its master.
    finish : callable
        Waits in the engine for so many seconds; whether all was read.
    """

    def __init__(
        self,
        taken: _core.ZoSnapshot,
        state: dict[str, Any],
        base: MasterBase,
        numbers: dict[int, int],
        made: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        finish: Callable[[float | None], bool],
    ) -> None:
        self._taken, self.state, self._base = taken, state, base
        self._numbers, self._made, self._finish = numbers, made, finish
        weakref.finalize(self, taken.close)  # One that nobody has any more holds up no step.

    @property
    def step(self) -> int:
        """Steps that are in the weights."""
        return self._taken.step

    def has(self, p: torch.Tensor) -> bool:
        """Whether a parameter is one of those that steps are written into."""
        return id(p) in self._numbers

    def has_image(self, p: torch.Tensor) -> bool:
        """Whether a parameter is not its own master, which is in `state` then."""
        return self.has(p) and self._base.has_image(p)

    def master(self, p: torch.Tensor) -> torch.Tensor:
        """Where the master lies; it is of any step."""
        return self._base.of(p)

    @contextlib.contextmanager
    def reading(self, p: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield what a forward reads of a parameter, when it is there: once for each parameter.

        Of one that is its own master it is that, which stays as it is until the block ends.

        Raises
        ------
        Error
            A lane failed, or others have written to the weights: what was read is not to be used.
        """
        number = self._numbers[id(p)]
        self._taken.wait(number)
        master = self._base.of(p)
        yield self._made(p, master) if self._base.has_image(p) else master.detach()
        self._taken.let_go(number)

    def finish(self, seconds: float | None = None) -> bool:
        """Wait until all was read, or for so long; whether it was. On the thread of the steps.

        Weights that no pass has brought are brought first, so that whoever reads them gets on.
        """
        try:
            return self._finish(seconds)
        except InvalidArgument:  # Of a pass that has failed, and cannot be ended.
            self.close()
            raise

    def close(self) -> None:
        """Nothing is read any more; idempotent."""
        self._taken.close()
