"""Options of every optimizer that runs a backward."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sluiceway.config.fields import Float, Natural, Positive, SmallCount
from sluiceway.config.options import Options, option
from sluiceway.config.values import Budget, Link

Order = Literal["edf", "fcfs", "paper", "barrier"]
NormMode = Literal["auto", "exact", "speculative"]


class BackwardOptions(Options):
    """Options of a backward that a config has in its section `engine`."""

    tiers_with_drives: ClassVar[tuple[str, ...]] = ()

    activations: Literal["device", "host", "disk", "auto"] = option(
        "device",
        "Place in which the inputs of the model's blocks wait for the backward. host and disk mean "
        "checkpointing, one block at a time: inputs leave the device behind the forward and are "
        "back before their block is computed again, and nothing inside of a block is kept. Then "
        "the device's memory hardly grows with the number of blocks. The bits are those of "
        "checkpointing. disk needs a tier with drives, uses the first one, and holds a few inputs "
        "in host memory; host holds all of them there, page-locked. device leaves checkpointing to "
        "you. auto, in a config, is the place with which `plan` finds the fastest step that fits "
        "the budgets.",
    )

    @model_validator(mode="after")
    def _has_a_drive(self) -> Self:
        tier = getattr(self, "tier", None)
        if self.activations == "disk" and tier not in self.tiers_with_drives:
            others = "".join(f", or tier {name}" for name in self.tiers_with_drives)
            raise ValueError(
                f"activations is disk, but tier is {tier}, which has no drive; take activations "
                f"host{others}"
            )
        return self


class SharedOptions(Options):
    """Options that a config has in sections other than `engine`."""

    @model_validator(mode="after")
    def _has_no_plan(self) -> Self:
        if getattr(self, "activations", None) == "auto":
            raise ValueError(
                "activations is auto, which needs the plan of a config; take device, host or disk"
            )
        return self

    max_norm: Annotated[Float, Field(gt=0)] | None = option(
        None, "Clip the common norm of all gradients at this value inside `step()`."
    )
    schedule: Order = option(
        "edf", "Order in which weights use the lanes; the bits are the same.", to=["engine"]
    )
    norm_mode: NormMode = option(
        "auto",
        "exact: updates wait for the norm of the whole gradient. speculative: updates begin with "
        "a forecast of the norm, and are made again if it was wrong. auto chooses by measured "
        "times. The bits are the same.",
        to=["engine"],
    )
    device: str = option("auto", 'Device of the model: "auto", "host" or "cuda:N".')
    link: Link | None = option(None, "Throttle of the link between device and host.")
    budget: Budget | None = option(
        None, "Bytes per tier; by default half of the machine's memory for host and pinned each."
    )
    accumulate: Literal["auto"] | SmallCount = option(
        "auto",
        'Backwards per step. "auto" takes any number: a wrong forecast of the last one is '
        "noticed and costs one more transfer. A number is a promise: one more backward raises an "
        "error if the work of the last one cannot be repeated.",
    )
    loss_scale: Literal["dynamic"] | Positive | None = option(
        None, "Scale for `scale_loss()`, removed inside `step()`; not needed with GradScaler."
    )
    seed: Natural = option(0, "Seed of projectors and of stochastic rounding.", in_state=True)
    trace: str | os.PathLike | None = option(
        None, "Path of a Chrome/Perfetto trace that `close()` writes."
    )
    lane_threads: Literal["auto"] | SmallCount = option(
        "auto",
        'Threads that share AdamW on the host; the bits are the same. "auto" with a CUDA device is '
        "the number of cores that this process may use, less two, and at most 8; with the host "
        "device it is 1, since the cores compute the model.",
    )
    pin: tuple[int, int] | None = option(None, "", alias="_pin")  # Cores of torch and of the lanes.
