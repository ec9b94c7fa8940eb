"""Small frozen values that the optimizers take: links, budgets, refresh policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluiceway.base.sizes import parse_bytes
from sluiceway.errors import InvalidArgument

_SOURCES = ("rolling", "closure")
_TRANSPORTS = ("projected", "keep", "reset")


@dataclass(frozen=True)
class Link:
    """A throttle on the link between device and host.

    Parameters
    ----------
    d2h_gbps, h2d_gbps : float
        Rates in GB/s (1e9 bytes), each way.
    latency_us : float
        Added to every copy, in microseconds.
    """

    d2h_gbps: float
    h2d_gbps: float
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        for name in ("d2h_gbps", "h2d_gbps"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(
                    f"Link: {name} is {getattr(self, name)}, expected above 0 GB/s"
                )
        if not self.latency_us >= 0:
            raise InvalidArgument(f"Link: latency_us is {self.latency_us}, expected 0 or more")


@dataclass(frozen=True)
class Budget:
    """Bytes each tier may hold, as integers or texts such as "4GiB"; None: what is free."""

    device: int | str | None = None
    host: int | str | None = None
    pinned: int | str | None = None
    disk: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("device", "host", "pinned", "disk"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_bytes(value))


@dataclass(frozen=True)
class Refresh:
    """When a projector is measured and replaced, and what its moments become.

    Parameters
    ----------
    every : int
        Steps between measurements; 0: never after the first fit.
    threshold : float or None
        Relative estimation bias above which a projector is replaced; None: always.
    source : str
        Where calibration gradients come from: "rolling" (a few weights per step in turn) or
        "closure" (a held-back batch).
    closure : callable or None
        Returns a calibration loss; needed by source "closure".
    learn_steps : int
        Most steps of learning per replacement.
    transport : str
        What moments become: "projected" onto the new projector, "keep" or "reset".
    """

    every: int = 0
    threshold: float | None = None
    source: str = "rolling"
    closure: Callable[[], Any] | None = None
    learn_steps: int = 100
    transport: str = "projected"

    def __post_init__(self) -> None:
        if self.every < 0 or self.learn_steps < 0:
            raise InvalidArgument(
                f"Refresh: every is {self.every} and learn_steps {self.learn_steps}, "
                "expected 0 or more"
            )
        if self.threshold is not None and not self.threshold >= 0:
            raise InvalidArgument(f"Refresh: threshold is {self.threshold}, expected 0 or more")
        if self.source not in _SOURCES:
            raise InvalidArgument(f"Refresh: source is {self.source!r}, expected one of {_SOURCES}")
        if self.transport not in _TRANSPORTS:
            raise InvalidArgument(
                f"Refresh: transport is {self.transport!r}, expected one of {_TRANSPORTS}"
            )
        if self.source == "closure" and self.every > 0 and self.closure is None:
            raise InvalidArgument('Refresh: source is "closure", expected closure= to be given')
