"""How many directions a step of streamed weights has, where a config leaves that to the plan.

    T* = b F / (4 B)        tokens of a step from which on one direction takes as long as the bus
    q  = ceil(T* / T)       directions that T tokens of a step need for that

b are the bytes of a parameter that cross in a step, B those of the bus a second, F the operations
of the device a second; a direction takes two forwards of 2 operations a parameter and token. Below
q the device waits, and one more direction costs next to nothing but where earlier steps are
replayed: behind k of them each direction draws those of all again, q^2 k. A step gets on by about
as much as it has directions; so they are no more than leave a second as many as it can have.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

TOKEN_FLOP = 4  # Of one direction, per parameter and token.
_AS_MANY = 0.99  # Of the most directions a second.


@dataclass(frozen=True)
class PlannedDirections:
    """What was chosen, and what kept it from being more."""

    chosen: int
    hiding_tokens: float  # T*.
    tokens: int  # T.
    bound: str  # "tokens", "memory", "log" or "time".
    why: str

    def figures(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def choose_directions(
    hiding: float,
    tokens: int,
    most: int,
    seconds: Callable[[int], float],
    device_bytes: Callable[[int], int],
    room: int | None,
) -> PlannedDirections:
    """As many as hide the bus, as far as memory, log and replays go; at least one.

    Parameters
    ----------
    hiding : float
        T*; 0 where nothing crosses.
    tokens : int
        Of a step, of all its micro-batches: the weights cross once for them.
    most : int
        That steps of the log may have.
    seconds, device_bytes : callable
        What a step of so many directions takes, and holds on the device.
    room : int or None
        Bytes that it may hold there; None: nobody knows.
    """
    wanted = max(1, math.ceil(hiding / tokens))
    logged = min(wanted, most)
    fitting = logged
    if room is not None:
        fitting = max(1, bisect_right(range(1, logged + 1), room, key=device_bytes))
    bound = "tokens" if fitting == wanted else "log" if fitting == logged else "memory"
    rates = [count / seconds(count) for count in range(1, fitting + 1)]
    chosen = max(i for i, rate in enumerate(rates, start=1) if rate >= _AS_MANY * max(rates))
    if chosen < fitting:
        bound = "time"
    because = {
        "tokens": "",
        "memory": f"; {wanted:,} do not fit the device's memory",
        "log": f"; {wanted:,} are more than the {most:,} of a step that the log takes",
        "time": f"; with {fitting:,}, and all that they replay, a second has fewer of them",
    }
    why = (
        f"{chosen:,}, as one hides what crosses from {hiding:,.0f} tokens a step on, and here are "
        f"{tokens:,}{because[bound]}"
    )
    return PlannedDirections(chosen, hiding, tokens, bound, why)
