"""Ownership of a model by an open optimizer, which gives it back exactly once."""

from __future__ import annotations

import atexit
import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.common.in_flight import WeightsInFlight


@dataclass(eq=False, repr=False)
class ModelOwnership:
    """Owns a model until `end()`, or until the last reference to this object goes.

    An optimizer refers to it, and so does a copy of an optimizer's attributes (Lightning's wrapper
    makes one). Neither has a finaliser of its own, so no copy can remove the hooks. A forked child
    owns nothing.
    """

    # Has `close(lent)`, and `finish(lent)`, which ends the updates in flight while the weights are
    # certainly alive.
    engine: Any
    give_back: ExitStack  # Restores the model.
    in_flight: WeightsInFlight
    # Lists the tensors that lanes may still use, which a stuck lane keeps for good. It must not
    # hold the optimizer.
    lent: Callable[[], list[torch.Tensor]]
    taken: list[torch.Tensor]  # Parameters that are trained or frozen, and no other may have.
    ended: bool = False

    def __post_init__(self) -> None:
        self._ids = set(map(id, self.taken))
        _open.add(self)

    def end(self) -> bool:
        """Apply all enqueued updates and restore the model; returns False if already done.

        After Ctrl-C the ownership goes on, and `end()` can be called again. If a lane failed or is
        stuck, this restores the model and raises.
        """
        if self.ended or self.in_flight.forked():
            return False
        try:
            self.engine.close(self.lent())
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                self._let_go()
            raise
        self._let_go()
        return True

    def has(self, parameter: torch.Tensor) -> bool:
        """Return whether another optimizer must leave it alone."""
        return not self.ended and not self.in_flight.forked() and id(parameter) in self._ids

    def _let_go(self) -> None:
        self.ended = True
        self.give_back.close()
        self.in_flight.give_back()

    def finish(self) -> None:
        """Do the work of `end()` if it was never called, while the weights still exist."""
        if self.ended or self.in_flight.forked():
            return
        self.ended = True
        self.give_back.close()
        try:
            self.engine.finish(self.lent())
        finally:
            self.in_flight.give_back()

    def __del__(self) -> None:
        self.finish()


_open: weakref.WeakSet[ModelOwnership] = weakref.WeakSet()
_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def hold(holder: Any) -> None:
    """Let `refuse_taken` ask `holder.has(parameter)` for the holder's lifetime."""
    _holders.add(holder)


def refuse_taken(owner: str, wanted: list[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters that another open optimizer trains or has frozen."""
    if not any(_taken(wanted)):
        return
    gc.collect()  # The other optimizer may be garbage already.
    for name in _taken(wanted):
        raise InvalidArgument(
            f"{owner}: {name} belongs to another optimizer of this model that is still open; "
            "close() that one first"
        )


def _taken(wanted: Iterable[tuple[str, torch.Tensor]]) -> Iterable[str]:
    others = [*_open, *_holders]
    return (name for name, p in wanted if any(other.has(p) for other in others))


@atexit.register  # Later, while Python tears modules down, a stuck lane could not be reported.
def _finish_all() -> None:
    for ownership in list(_open):
        try:
            ownership.finish()
        except Error as error:
            print(f"sluiceway: {error}", file=sys.stderr)
