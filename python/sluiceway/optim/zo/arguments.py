"""What ZoSgd takes by name."""

from __future__ import annotations

from sluiceway.config.engines.zo import ZoOptions
from sluiceway.config.fields import Natural
from sluiceway.config.options import option


class ZoArguments(ZoOptions):
    """Options of zeroth-order training, and what a config says in other sections."""

    device: str = option("auto", '"auto", which is where the model is, "host" or "cuda:N".')
    seed: Natural = option(0, "Of the directions.", in_state=True)
