"""What every optimizer of ours is told, whatever its engine does with gradients."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from sluiceway.config.fields import Float, Natural, Positive, SmallCount
from sluiceway.config.options import Options, option
from sluiceway.config.values import Budget, Link

Order = Literal["edf", "fcfs", "paper", "barrier"]
NormMode = Literal["auto", "exact", "speculative"]


class SharedOptions(Options):
    """Options of all engines; a config says them in the sections that are not `engine`."""

    max_norm: Annotated[Float, Field(gt=0)] | None = option(
        None, "Clip the common norm of all gradients at this value inside `step()`."
    )
    schedule: Order = option(
        "edf", "Order in which weights take the lanes; the bits are the same.", to=["engine"]
    )
    norm_mode: NormMode = option(
        "auto",
        "Whether updates wait for the norm of the whole gradient, or begin with a forecast of it "
        "and are recalled where it was wrong; the bits are the same.",
        to=["engine"],
    )
    device: str = option("auto", '"auto", which is where the model is, "host" or "cuda:N".')
    link: Link | None = option(None, "Throttle of the link between device and host.")
    budget: Budget | None = option(
        None, "Bytes per tier; device, host and pinned are half of memory where nothing is said."
    )
    accumulate: Literal["auto"] | SmallCount = option(
        "auto",
        '"auto": any number of backwards a step works; a wrong forecast is noticed and costs one '
        "more transfer. A number is a promise: one more backward is refused.",
    )
    loss_scale: Literal["dynamic"] | Positive | None = option(
        None, "Scale for `scale_loss()`, removed inside `step()`; not needed with GradScaler."
    )
    seed: Natural = option(
        0, "Of projectors and stochastic rounding.", to=["engine"], in_state=True
    )
    trace: str | os.PathLike | None = option(
        None, "Path of a Chrome/Perfetto trace that `close()` writes."
    )
    lane_threads: Literal["auto"] | SmallCount = option(
        "auto",
        'Threads that share AdamW on the host; the bits are the same. "auto": on a CUDA device the '
        "cores that this process may use, but for two, and at most 8; on the host device 1, as its "
        "cores compute the model.",
    )
    pin: tuple[int, int] | None = option(None, "", alias="_pin")  # Cores of torch and of the lanes.
