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
    """Ends with `end()`, or with the last who refers to it.

    An optimizer refers to it, and so does whatever copied the attributes of one (Lightning's
    wrapper does): neither has a finaliser of its own, so that no copy takes the hooks away.

    Parameters
    ----------
    engine : object
        Has `close(lent)`, and `finish(lent)`, which ends what is in flight while the weights are
        certainly alive.
    give_back : ExitStack
        Leaves the model as it was found.
    in_flight : WeightsInFlight
        Knows a forked child, which owns nothing.
    lent : callable
        What lanes may still use, kept for good where one is stuck. It must not hold the optimizer.
    taken : list of torch.Tensor
        The model's parameters that are trained or were frozen: no other optimizer may have them.
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
        """Apply what is enqueued and give the model back; False if there is nothing to do.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C; nothing has ended.
        Error
            A lane failed, or is stuck; the model was given back.
        """
        if self.ended or self._in_flight.forked():
            return False
        try:
            self._engine.close(self._lent())
        except KeyboardInterrupt:
            raise  # Nothing is lost: it is open, and may be closed again.
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
        """Do the rest of `end()` where nobody called it, while the weights are certainly alive.

        Raises
        ------
        Error
            A lane is stuck; the model was given back.
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
    """Let `refuse_taken` ask `holder`, while there is one."""
    _holders.add(holder)


def refuse_taken(owner: str, wanted: list[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters that another optimizer trains, or has frozen, until it is closed.

    Raises
    ------
    InvalidArgument
        The first one is named.
    """
    if not any(_taken(wanted)):
        return
    gc.collect()  # Perhaps nobody refers to it any more.
    for name in _taken(wanted):
        raise InvalidArgument(
            f"{owner}: {name} belongs to another optimizer of this model that is still open, "
            "expected one optimizer for a parameter; close() that one first"
        )


def _taken(wanted: Iterable[tuple[str, torch.Tensor]]) -> Iterable[str]:
    others: list[Holder] = [*_open, *_holders]
    return (name for name, p in wanted if any(other.has(p) for other in others))


@atexit.register  # Later, while modules are torn down, nobody could be told of a stuck lane.
def _finish_all() -> None:
    for ownership in list(_open):
        try:
            ownership.finish()
        except Error as error:
            print(f"sluiceway: {error}", file=sys.stderr)
