"""What an open optimizer holds of its model, and how it is given back exactly once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from sluiceway.optim.open_model.in_flight import WeightsInFlight


class ModelOwnership:
    """Ends with `end()`, or with the last who refers to it.

    An optimizer refers to it, and so does whatever copied the attributes of one (Lightning's
    wrapper does): neither has a finaliser of its own, so that no copy takes the hooks away.

    Parameters
    ----------
    engine : object
        Has `finish()`, which ends what is in flight while the weights are certainly alive.
    give_back : ExitStack
        Leaves the model as it was found.
    in_flight : WeightsInFlight
        Knows a forked child, which owns nothing.
    """

    def __init__(self, engine: Any, give_back: ExitStack, in_flight: WeightsInFlight) -> None:
        self._engine = engine
        self._give_back = give_back
        self._in_flight = in_flight
        self.ended = False

    def end(self) -> bool:
        """Apply what is enqueued and give the model back; False if there is nothing to do.

        Raises
        ------
        Error
            A lane failed; the model was given back.
        """
        if self.ended or self._in_flight.forked():
            return False
        self.ended = True
        self._give_back.close()
        try:
            self._engine.drop()
            self._engine.synchronize()
        finally:
            self._in_flight.give_back()
        return True

    def __del__(self) -> None:
        if not self.ended and not self._in_flight.forked():
            self.ended = True
            self._give_back.close()
            self._engine.finish()
            self._in_flight.give_back()
