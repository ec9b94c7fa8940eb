"""Ownership of a model by an open optimizer, which gives it back exactly once."""

from __future__ import annotations

import atexit
import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.common.in_flight import WeightsInFlight


class ModelOwnership:
    """Owns a model until `end()`, or until the last reference to this object goes.

    An optimizer refers to it, and so does a copy of an optimizer's attributes (Lightning's wrapper
    makes one). Neither has a finaliser of its own, so no copy can remove the hooks.

    Parameters
    ----------
    engine : object
        Has `close(lent)`, and `finish(lent)`, which ends the updates in flight while the weights
        are certainly alive.
    give_back : ExitStack
        Restores the model.
    in_flight : WeightsInFlight
        Tells whether this process is a forked child, which owns nothing.
    lent : callable
        Lists the tensors that lanes may still use, which a stuck lane keeps for good. It must not
        hold the optimizer.
    taken : list of torch.Tensor
        The model's parameters that the optimizer trains or has frozen, and no other may have.
    """

    def __init__(
        self,
        engine: Any,
        give_back: ExitStack,
        in_flight: WeightsInFlight,
        lent: Callable[[], list[torch.Tensor]],
        taken: list[torch.Tensor],
    ) -> None:
        self._engine = engine
        self._give_back = give_back
        self._in_flight = in_flight
        self._lent = lent
        self._taken = {id(p): p for p in taken}
        self.ended = False
        _open.add(self)

    def end(self) -> bool:
        """Apply all enqueued updates and restore the model; returns False if already done.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C; the ownership goes on.
        Error
            A lane failed or is stuck. The model was restored.
        """
        if self.ended or self._in_flight.forked():
            return False
        try:
            self._engine.close(self._lent())
        except KeyboardInterrupt:
            raise  # The optimizer is still open, and close() can be called again.
        except BaseException:
            self._let_go()
            raise
        self._let_go()
        return True

    def has(self, parameter: torch.Tensor) -> bool:
        """Return whether another optimizer must leave it alone."""
        return not self.ended and not self._in_flight.forked() and id(parameter) in self._taken

    def _let_go(self) -> None:
        self.ended = True
        self._give_back.close()
        self._in_flight.give_back()

    def finish(self) -> None:
        """Do the work of `end()` if it was never called, while the weights are certainly alive.

        Raises
        ------
        Error
            A lane is stuck. The model was restored.
        """
        if self.ended or self._in_flight.forked():
            return
        self.ended = True
        self._give_back.close()
        try:
            self._engine.finish(self._lent())
        finally:
            self._in_flight.give_back()

    def __del__(self) -> None:
        self.finish()


class Holder(Protocol):
    """Trains parameters that no other optimizer may have."""

    def has(self, parameter: torch.Tensor) -> bool:
        """Return whether another optimizer must leave it alone."""


_open: weakref.WeakSet[ModelOwnership] = weakref.WeakSet()
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def hold(holder: Holder) -> None:
    """Let `refuse_taken` ask `holder` for the holder's lifetime."""
    _holders.add(holder)


def refuse_taken(owner: str, wanted: list[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters that another open optimizer trains or has frozen.

    Raises
    ------
    InvalidArgument
        Names the first such parameter.
    """
    if not any(_taken(wanted)):
        return
    gc.collect()  # The other optimizer may be garbage already.
    for name in _taken(wanted):
        raise InvalidArgument(
            f"{owner}: {name} belongs to another optimizer of this model that is still open; "
            "close() that one first"
        )


def _taken(wanted: Iterable[tuple[str, torch.Tensor]]) -> Iterable[str]:
    others: list[Holder] = [*_open, *_holders]
    return (name for name, p in wanted if any(other.has(p) for other in others))


@atexit.register  # Later, while Python tears modules down, a stuck lane could not be reported.
def _finish_all() -> None:
    for ownership in list(_open):
        try:
            ownership.finish()
        except Error as error:
            print(f"sluiceway: {error}", file=sys.stderr)
