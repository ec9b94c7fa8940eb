"""What ZoSgd takes by name."""

from __future__ import annotations

from typing import Literal

from sluiceway.config.fields import Count, Natural, Positive
from sluiceway.config.options import Options, option


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
    seed: Natural = option(0, "Of the directions.", in_state=True)

    @property
    def family(self) -> str:
        """What "auto" stands for."""
        return "rademacher" if self.noise == "auto" else self.noise
