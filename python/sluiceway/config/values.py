"""Small frozen values for configs and optimizers: links, budgets, refresh policies."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sluiceway.config.fields import Float, Int, Natural, NotNegative, Positive, Size, in_home
from sluiceway.config.options import Options, option


def _above_zero(rate: float) -> float:
    if not rate > 0:
        raise ValueError(f"is {rate:g}, expected above 0 GB/s")
    return rate


def _tuple_is_a_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


Rate = Annotated[Float, Field(allow_inf_nan=False), AfterValidator(_above_zero)]
ZeroOrMore = Annotated[Float, Field(ge=0)]
Steps = Annotated[Int, Field(ge=0, lt=2**31)]


class Link(Options):
    """A throttle on the link between device and host."""

    d2h_gbps: Rate = option(..., "Rate from device to host in GB/s (1e9 bytes).")
    h2d_gbps: Rate = option(..., "Rate from host to device in GB/s.")
    latency_us: NotNegative = option(0.0, "Added to every copy, in microseconds.")


class Budget(Options):
    """Bytes that each tier may hold, as integers or texts such as "4GiB"; None: all free bytes."""

    device: Size | None = option(None, "Memory of the device on which the model computes.")
    host: Size | None = option(None, "Memory of the host that is not page-locked.")
    pinned: Size | None = option(None, "Page-locked memory of the host.")
    disk: Size | None = option(None, "The store.")


def _in_home(path: Any) -> Any:
    return in_home(path) if isinstance(path, str) else path


class StoreOptions(Options):
    """Place and access of a chunk store, which holds states or weights outside of memory."""

    path: Annotated[
        str | os.PathLike | list[str | os.PathLike] | None, BeforeValidator(_tuple_is_a_list)
    ] = option(
        None,
        'Folder on the disk to use, made if it is not there; with io="block" the device. A list '
        "has one folder or device on each of several disks, always in the same order: chunks are "
        "distributed by the rates that were measured when the store was made. By default a run "
        "of the command line has the store in its own folder.",
    )
    io: Literal["auto", "uring", "posix", "block"] = option(
        "auto",
        "Interface to the disk: uring, or posix with threads; auto is uring if the system allows "
        "it. block takes a whole block device, and overwrites what is on it.",
    )
    rate_gbps: Rate | None = option(
        None,
        "Paces each drive at this rate in GB/s (1e9 bytes), reads and writes together, as if it "
        "were a slower one. Not with io uring. By default a drive is as fast as it is.",
    )
    chunk: Size = option(4 << 20, "Bytes of a state that move as one piece; a multiple of 8 KiB.")

    @field_validator("rate_gbps")
    @classmethod
    def _threads_wait_for_it(cls, rate: float | None, field: ValidationInfo) -> float | None:
        if rate is not None and field.data.get("io") == "uring":
            raise ValueError(f"is {rate:g}, but io is uring, which cannot pace; take io auto")
        return rate

    @field_validator("path")
    @classmethod
    def _names_one(cls, path: Any) -> Any:
        if path == []:
            raise ValueError("is [], expected a path, or a list with a path for each disk")
        for one in path if isinstance(path, list) else [path]:
            if one is not None and not os.fspath(one):
                raise ValueError(
                    "is the empty text, expected the name of a folder or device; . is the current "
                    "folder"
                )
        if isinstance(path, list):
            return [_in_home(one) for one in path]
        return _in_home(path)

    @property
    def paths(self) -> list[str]:
        """One path for each drive, in order; perhaps none."""
        listed = self.path if isinstance(self.path, list) else [self.path]
        return [os.fspath(path) for path in listed if path is not None]

    @property
    def place(self) -> str:
        """Paths joined for an error text."""
        return " and ".join(self.paths)


class RefreshSection(Options):
    """Options of a refresh that a config file can have, so all except the closure."""

    every: Natural = option(0, "Steps between measurements; 0: never after the first fit.")
    threshold: ZeroOrMore | None = option(
        None, "Relative estimation bias above which a projector is replaced; None: always."
    )
    source: Literal["rolling", "closure"] = option(
        "rolling",
        "Source of calibration gradients: rolling takes the gradients of a few weights a step, in "
        "turn; closure those of a batch that you held back.",
    )
    learn_steps: Steps = option(100, "Largest number of learning steps in one replacement.")
    transport: Literal["projected", "keep", "reset"] = option(
        "projected",
        "Moments after a replacement: projected onto the new projector, kept, or set to 0.",
    )
    learn_rate: Positive = option(0.1, "Learning rate of Adam on the values of a projector.")
    beta: NotNegative = option(
        1e-4, "Weight of the projectors' norms, beside the bias, in the loss that learning lowers."
    )
    init: Literal["sign", "normal"] = option(
        "sign", "Values of a new projector before learning: signs, or normal draws."
    )


class Refresh(RefreshSection):
    """Options for the replacement of projectors: when, how they are learned, and their moments."""

    __match_args__ = ("every", "threshold", "source", "closure", "learn_steps", "transport")

    closure: Callable[[], Any] | None = option(
        None, 'Function that returns a calibration loss, for source "closure".'
    )

    @model_validator(mode="after")
    def _closure_is_given(self) -> Refresh:
        if self.source == "closure" and self.every > 0 and self.closure is None:
            raise ValueError('source is "closure", but closure= is missing')
        if self.source == "rolling" and self.closure is not None:
            raise ValueError(
                'closure= is given, but source is "rolling", which never calls it; set '
                'source="closure"'
            )
        return self
