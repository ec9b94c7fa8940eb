"""Chooses the number of directions for a step with streamed weights.

    T* = b F / (4 B)        tokens per step from which on one direction takes as long as the bus
    q  = ceil(T* / T)       directions with which T tokens per step take as long as the bus

b is the number of bytes that cross per parameter and step, B the bytes per second of the bus, and
F the operations per second of the device. A direction takes two forwards with 2 operations per
parameter and token. With fewer than q directions the device waits, so one more costs next to
nothing, unless earlier steps are replayed: with k pending steps, each direction draws the noise of
all directions of those steps again, q^2 k. The progress of a step is about proportional to its
directions, so the number stays small enough that the directions per second are near their maximum.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

TOKEN_FLOP = 4  # Operations of one direction per parameter and token.
_AS_MANY = 0.99  # Share of the largest number of directions per second that must be reached.


@dataclass(frozen=True)
class PlannedDirections:
    """Number of directions that the planner chose, and the bound that limited it."""

    chosen: int
    hiding_tokens: float  # T*.
    tokens: int  # T.
    bound: str  # "tokens", "memory", "log" or "time".
    why: str

    def figures(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def choose_directions(
    hiding: float,
    tokens: int,
    most: int,
    seconds: Callable[[int], float],
    device_bytes: Callable[[int], int],
    room: int | None,
) -> PlannedDirections:
    """Choose enough directions to hide the bus, within memory, log and replay time; at least one.

    Parameters
    ----------
    hiding : float
        T*; 0 if nothing crosses.
    tokens : int
        T: tokens of all micro-batches of a step, for which the weights cross once.
    most : int
        Largest number of directions in a step of the log.
    seconds, device_bytes : callable
        Return the time of a step with the given number of directions, and its device memory.
    room : int or None
        Bytes that a step may hold on the device; None if unknown.
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
        "memory": f"; {wanted:,} do not fit into the device's memory",
        "log": f"; {wanted:,} are more than the {most:,} per step that the log can hold",
        "time": f"; with {fitting:,}, replays would reduce the directions per second",
    }
    why = (
        f"{chosen:,}, since one direction hides the transfers with {hiding:,.0f} tokens per step, "
        f"and a step has {tokens:,}{because[bound]}"
    )
    return PlannedDirections(chosen, hiding, tokens, bound, why)
