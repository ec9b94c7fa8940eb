"""Small frozen values that configs and optimizers take: links, budgets, refresh policies."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from sluiceway.config.fields import Float, Int, Natural, NotNegative, Positive, Size
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
    """Bytes each tier may hold, as integers or texts such as "4GiB"; None: what is free."""

    device: Size | None = option(None, "Where the model computes.")
    host: Size | None = option(None, "Memory of the host that is not page-locked.")
    pinned: Size | None = option(None, "Page-locked memory of the host.")
    disk: Size | None = option(None, "The store.")


class StoreOptions(Options):
    """Where an engine keeps what is too large for memory."""

    path: Annotated[
        str | os.PathLike | list[str | os.PathLike] | None, BeforeValidator(_tuple_is_a_list)
    ] = option(
        None,
        'A folder on the disk to be used, made if it is not there; with io="block" the device. A '
        "list has one folder, or device, on each of several disks, always in the same order: "
        "chunks are dealt to them by the rates that were measured when the store was made. A run "
        "of the command line has it in its own folder where nothing is said.",
    )
    io: Literal["auto", "uring", "posix", "block"] = option(
        "auto",
        "How the disk is asked: through io_uring, or by threads; auto is io_uring where the system "
        "allows it. block takes a whole block device, whose content goes.",
    )
    chunk: Size = option(
        4 << 20, "Bytes of each of the states that move as one; a multiple of 8 KiB."
    )

    @field_validator("path")
    @classmethod
    def _names_one(cls, path: Any) -> Any:
        if path == []:
            raise ValueError("is [], expected a path, or a list of one for each disk")
        for one in path if isinstance(path, list) else [path]:
            if one is not None and not os.fspath(one):
                raise ValueError(
                    "is the empty text, expected the name of a folder or device; . is the current "
                    "folder"
                )
        return path

    @property
    def paths(self) -> list[str]:
        """One for each drive, in order; perhaps none."""
        listed = self.path if isinstance(self.path, list) else [self.path]
        return [os.fspath(path) for path in listed if path is not None]

    @property
    def place(self) -> str:
        """All paths, for people."""
        return " and ".join(self.paths)


class RefreshSection(Options):
    """What a file can say of a refresh: everything but a function."""

    every: Natural = option(0, "Steps between measurements; 0: never after the first fit.")
    threshold: ZeroOrMore | None = option(
        None, "Relative estimation bias above which a projector is replaced; None: always."
    )
    source: Literal["rolling", "closure"] = option(
        "rolling",
        "Where calibration gradients come from: a few weights a step in turn, or a batch that was "
        "held back.",
    )
    learn_steps: Steps = option(100, "Most steps of learning in one replacement.")
    transport: Literal["projected", "keep", "reset"] = option(
        "projected", "What moments become: projected onto the new projector, kept or set to 0."
    )
    learn_rate: Positive = option(0.1, "Learning rate of Adam on the values of a projector.")
    beta: NotNegative = option(
        1e-4, "Weight of the projectors' norms beside the bias, in what learning lowers."
    )
    init: Literal["sign", "normal"] = option(
        "sign", "What the values of a new projector are before learning: signs, or normal draws."
    )


class Refresh(RefreshSection):
    """When a projector is measured and replaced, how it is learned, what its moments become."""

    __match_args__ = ("every", "threshold", "source", "closure", "learn_steps", "transport")

    closure: Callable[[], Any] | None = option(
        None, 'Returns a calibration loss; what source "closure" needs.'
    )

    @model_validator(mode="after")
    def _closure_is_given(self) -> Refresh:
        if self.source == "closure" and self.every > 0 and self.closure is None:
            raise ValueError('source is "closure", expected closure= to be given')
        if self.source == "rolling" and self.closure is not None:
            raise ValueError(
                'closure= is given and source is "rolling", expected source="closure", as nothing '
                "else calls it"
            )
        return self
