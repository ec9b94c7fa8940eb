"""Keyword arguments of ZoSgd."""

from __future__ import annotations

import os

from sluiceway.config.engines.zo import STREAMED, ZoOptions
from sluiceway.config.fields import Natural
from sluiceway.config.options import option
from sluiceway.config.values import Budget, Link, StoreOptions


class ZoArguments(ZoOptions):
    """Options of zeroth-order training, and settings that a config has in other sections."""

    device: str = option("auto", '"auto" (the device of the model), "host" or "cuda:N".')
    path: str | os.PathLike | None = option(
        None,
        "Folder with the log of tiers host and disk. It is made if it does not exist; an existing "
        "log is continued. Without a path, the log is temporary and deleted with the optimizer.",
    )
    store: StoreOptions | None = option(
        None,
        "Store in which tier disk keeps the weights. An existing store is opened; otherwise one is "
        "made from the model's weights.",
    )
    link: Link | None = option(
        None, "Throttle of the link between device and host, for tiers host and disk."
    )
    budget: Budget | None = option(
        None,
        "Bytes per tier, for tiers host and disk; device, host and pinned default to half of "
        "memory.",
    )
    trace: str | os.PathLike | None = option(
        None, "Path of a Chrome/Perfetto trace that `close()` writes, for tiers host and disk."
    )
    pin: tuple[int, int] | None = option(None, "", alias="_pin")  # Cores of torch and of the lanes.
    opens: bool = option(False, "", alias="_opens")  # Open an existing store, never make one.
    seed: Natural = option(0, "Seed of the directions.", in_state=True)

    def _restricted(self) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """List the same for arguments that a config has in other sections."""
        return [
            *super()._restricted(),
            (self.tier, STREAMED, ("path", "link", "budget", "trace")),
            (self.tier, ("disk",), ("store",)),
            (self.mode, ("log",), ("path",)),
        ]
