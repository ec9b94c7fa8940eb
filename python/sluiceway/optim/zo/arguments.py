"""What ZoSgd takes by name."""

from __future__ import annotations

from typing import Literal

from sluiceway.config.fields import Count, Natural, Positive, SmallCount
from sluiceway.config.options import Options, option


class ZoOptions(Options):
    """Options of zeroth-order training."""

    eps: Positive = option(1e-3, "How far from the weights both losses are measured.")
    directions: Count = option(
        1, "Directions that are measured and averaged in a step.", in_state=True
    )
    noise: Literal["auto", "rademacher", "byte_quantile", "gaussian", "lowrank"] = option(
        "auto",
        "What directions are drawn from; auto is rademacher. lowrank: those of matrices are U V^T "
        "of Gaussian factors, norms and biases have Gaussian ones.",
        in_state=True,
    )
    rank: SmallCount = option(4, "Columns of U and V, for noise lowrank.", in_state=True)
    period: Count = option(50, "Steps for which V is kept, for noise lowrank.", in_state=True)
    device: str = option("auto", '"auto", which is where the model is, "host" or "cuda:N".')
    seed: Natural = option(0, "Of the directions.", in_state=True)

    @property
    def family(self) -> str:
        """Of what numbers are drawn from."""
        return {"auto": "rademacher", "lowrank": "gaussian"}.get(self.noise, self.noise)
