"""What ZoSgd takes by name."""

from __future__ import annotations

import os

from sluiceway.config.engines.zo import ZoOptions
from sluiceway.config.fields import Natural
from sluiceway.config.options import option
from sluiceway.config.values import Budget, Link, StoreOptions


class ZoArguments(ZoOptions):
    """Options of zeroth-order training, and what a config says in other sections."""

    device: str = option("auto", '"auto", which is where the model is, "host" or "cuda:N".')
    path: str | os.PathLike | None = option(
        None,
        "A folder with the log of tiers host and disk, made if it is not there; a log that is "
        "there goes on. Where nothing is said it goes with the optimizer.",
    )
    store: StoreOptions | None = option(
        None,
        "Where tier disk keeps the weights: a store that is there goes on, and else one is made of "
        "the model's.",
    )
    link: Link | None = option(
        None, "Throttle of the link between device and host, of tiers host and disk."
    )
    budget: Budget | None = option(
        None,
        "Bytes per tier, for tiers host and disk; device, host and pinned are half of memory where "
        "nothing is said.",
    )
    trace: str | os.PathLike | None = option(
        None, "Path of a Chrome/Perfetto trace that `close()` writes, of tiers host and disk."
    )
    pin: tuple[int, int] | None = option(None, "", alias="_pin")  # Cores of torch and of the lanes.
    opens: bool = option(False, "", alias="_opens")  # A store that is there, and makes none.
    seed: Natural = option(0, "Of the directions.", in_state=True)
