"""What ZoSgd takes by name."""

from __future__ import annotations

import os
from typing import Literal

from sluiceway.config.fields import Count, Natural, Positive, Size, SmallCount
from sluiceway.config.options import Options, option
from sluiceway.config.values import Budget, Link


class ZoOptions(Options):
    """Options of zeroth-order training."""

    eps: Positive = option(1e-3, "How far from the weights both losses are measured.")
    directions: Count = option(
        1, "Directions that are measured and averaged in a step.", in_state=True
    )
    noise: Literal["auto", "rademacher", "byte_quantile", "gaussian"] = option(
        "auto", "What directions are drawn from; auto is rademacher.", in_state=True
    )
    device: str = option("auto", '"auto", which is where the model is, "host" or "cuda:N".')
    tier: Literal["device", "host"] = option(
        "device",
        'Where weights are: "device", and moved there by each step; "host", in host memory, never '
        "written to, and streamed through the device, each step a record of a log.",
        in_state=True,
    )
    path: str | os.PathLike | None = option(
        None,
        "A folder with the log of tier host, made if it is not there; a log that is there goes on. "
        "Where nothing is said it goes with the optimizer.",
    )
    depth: SmallCount = option(2, "Layers that are on their way to the device, of tier host.")
    perturb_lanes: SmallCount = option(1, "Streams or threads that perturb them, of tier host.")
    resident: Size = option(
        0, "Bytes of weights of tier host that stay on the device beside norms and biases."
    )
    link: Link | None = option(None, "Throttle of the link between device and host, of tier host.")
    budget: Budget | None = option(
        None,
        "Bytes per tier, for tier host; device, host and pinned are half of memory where nothing "
        "is said.",
    )
    trace: str | os.PathLike | None = option(
        None, "Path of a Chrome/Perfetto trace that `close()` writes, of tier host."
    )
    pin: tuple[int, int] | None = option(None, "", alias="_pin")  # Cores of torch and of the lanes.
    seed: Natural = option(0, "Of the directions.", in_state=True)

    @property
    def family(self) -> str:
        """What "auto" stands for."""
        return "rademacher" if self.noise == "auto" else self.noise
