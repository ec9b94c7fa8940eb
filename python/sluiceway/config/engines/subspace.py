"""What a config may say of the engine that trains through compressed gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from sluiceway.config.engine_section import EngineSection
from sluiceway.config.fields import Count, Natural, NotNegative, Positive, Section
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config


class RefreshSection(Section):
    every: Natural = 0
    threshold: NotNegative | None = None
    source: Literal["rolling", "closure"] = "rolling"
    learn_steps: Natural = 100
    transport: Literal["projected", "keep", "reset"] = "projected"


class SubspaceSection(EngineSection):
    kind: Literal["subspace"] = "subspace"
    codec: Literal[
        "auto",
        "svd",
        "block_random",
        "block_pca",
        "sparse_learned",
        "sparse_random",
        "identity",
        "none",
    ] = "auto"
    ratio: Annotated[Positive, Field(le=1)] = 0.25
    d: Count | None = None  # A square core of this size, in place of ratio.
    nnz: Count = 4
    block: Count = 32
    residual: Literal["auto", "factored", "sign", "none"] = "auto"
    residual_every: Count = 1
    second_moment: Literal["auto", "full", "factored"] = "auto"
    scale: Literal["auto"] | Positive = "auto"
    refresh: RefreshSection | None = None  # null: fitted once, kept.
    wire: Literal["bf16", "fp32", "int8"] = "bf16"
    tier: Literal["host", "device", "auto"] = "host"
    weight_update: Literal["auto", "stochastic", "residual"] = "auto"
    target: str | list[str] = "all-linear"
    embeddings: Literal["frozen", "identity"] = "frozen"

    def check_available(self, config: Config) -> None:
        """Refuse a store, and what only the Python class can be given."""
        super().check_available(config)
        if self.refresh and self.refresh.source == "closure":
            raise Unavailable(
                "engine.refresh.source: closure needs the Python class, a config has: rolling"
            )
