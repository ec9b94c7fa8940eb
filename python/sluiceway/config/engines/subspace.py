"""The options of training through compressed gradients, and the section of a config with them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from sluiceway.config.codec_options import CodecOptions, Ratio, ratio_option
from sluiceway.config.engine_section import EngineSection
from sluiceway.config.fields import Positive, SmallCount
from sluiceway.config.options import option
from sluiceway.config.values import RefreshSection
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

# What the compiled module offers; here too, so that a config is checked before torch is loaded.
OFFERED_CODECS = (
    "auto",
    "svd",
    "block_random",
    "block_pca",
    "sparse_learned",
    "sparse_random",
    "identity",
    "none",
)


class SubspaceOptions(CodecOptions):
    """How gradients are compressed, and what becomes of what that leaves of them."""

    codec: str = option(
        "auto",
        '"auto" (none, the residual alone, which sends nothing; svd where a core was measured to '
        "end lower: from 1,024 tokens a step, 256 with 16-bit weights, up to 500 steps, with a "
        "ratio of 1/2, if it fits the budgets and its products and calibration together are less "
        "than 6 % of the run's, 14 % from 4,096 tokens a step; "
        'block_random where the residual is not factored), "svd", "block_random", "block_pca", '
        '"sparse_learned", "sparse_random", "identity" or "none".',
        to=["engine", "weight"],
    )
    ratio: Literal["auto"] | Ratio = ratio_option(
        "auto", " auto: 1/2 for svd and codec auto, else 1/4."
    )
    residual: Literal["auto", "factored", "sign", "none"] = option(
        "auto",
        "What is done with the part of the gradient that the codec leaves: factored trains with it "
        "on the device, as Adafactor does, sign by its sign, none drops it. auto is factored for "
        "codecs with orthonormal columns and for the codec none, else none. While it waits for "
        "`step()` the gradient stays on the device. With a number as `accumulate`, residuals are "
        "applied, and gradients freed, during the last backward. Neither `zero_grad()` nor a "
        "skipped step undoes them: a backward without its `step()`, or a save before it, warns "
        "once, and `step()` refuses other rates than its backward had. Under autocast(float16) "
        "they wait all the same, and follow what scales the gradient, clipping included; a promise "
        "beside a GradScaler is refused otherwise, at its first step.",
        to=["weight"],
        in_state=True,
    )
    residual_every: SmallCount = option(
        1,
        "Steps between the residuals of a weight, each the square root of that as large.",
        to=["engine"],
    )
    second_moment: Literal["auto", "full", "factored"] = option(
        "auto",
        "factored keeps of a core's second moment the means of rows and columns only, which halves "
        "the state on the host. auto is factored for codecs with orthonormal columns, where "
        "`experiments/fidelity` found no loss, else full.",
        to=["weight"],
        in_state=True,
    )
    weight_rates: Literal["auto", "equal", "rms"] = option(
        "auto",
        "rms: the learning rate of each compressed weight times its root mean square, as training "
        "begins, over the mean of all, at least 1/4 and at most 4; weight decay stays as it is. "
        "equal: every weight has that of its group. auto is rms beside a factored residual, where "
        "`experiments/regimes` found a gain for none, block_random and svd, else equal.",
        in_state=True,
    )
    scale: Literal["auto"] | Positive = option(
        "auto", "Factor on the compressed update; auto is 1/f for orthonormal codecs."
    )
    refresh: RefreshSection | None = option(
        None, "When projectors are measured and replaced; None: fitted once, kept."
    )
    tier: Literal["host", "device", "auto"] = option(
        "host",
        "Where AdamW on the core runs; on the device nothing crosses the link.",
        to=["weight"],
    )
    weight_update: Literal["auto", "stochastic", "residual"] = option(
        "auto",
        "How 16-bit weights are updated: rounded stochastically, or exactly with 2 more bytes for "
        "each element.",
        to=["weight"],
        in_state=True,
    )
    embeddings: Literal["frozen", "identity"] = option(
        "frozen", "Embeddings and head are frozen, or trained through the identity codec."
    )
    fused: bool = option(
        False,
        "Linear layers compute cores in backward and form no gradient, as `fuse_linears()` makes "
        "them. The codec auto is then block_random, at a ratio of 1/2; residual auto is none, or "
        "factored where `residual_every` is 2 or more: then a weight forms its gradient in the "
        "steps in which its residual has its turn. `plan` counts the step that takes the most: as "
        "if gradients were formed, where projectors are fitted or measured.",
    )

    share_inputs: bool = option(
        False,
        "Weights whose layers read one input share Q where the codec draws it: q, k and v of an "
        "attention, gate and up of an MLP, by the names that transformers' models give them. Fused "
        "layers then project such an input once, and keep it once.",
        in_state=True,
    )

    @model_validator(mode="after")
    def _residual_leaves_something_to_fuse(self) -> Self:
        if self.fused and self.residual in ("factored", "sign") and self.residual_every == 1:
            raise ValueError(
                f"residual is {self.residual!r} with fused and residual_every 1, which needs every "
                "gradient in every step, expected residual none, or residual_every of 2 or more"
            )
        return self


class SubspaceSection(SubspaceOptions, EngineSection):
    """The same in a file, with no codec that is for experiments only."""

    kind: Literal["subspace"] = "subspace"
    # By the name that "auto" had come to: what differs from a save's codecs is refused with it.
    changeable: ClassVar[tuple[str, ...]] = ("codec", "ratio", "weight_rates")

    @field_validator("codec")
    @classmethod
    def _is_offered(cls, codec: str) -> str:
        if codec not in OFFERED_CODECS:
            *first, last = (repr(name) for name in OFFERED_CODECS)
            close = difflib.get_close_matches(codec, OFFERED_CODECS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"is {codec!r}, expected {', '.join(first)} or {last}{hint}")
        return codec

    def check_available(self, config: Config) -> None:
        """Refuse a store, and what only the Python class can be given."""
        super().check_available(config)
        if self.refresh and self.refresh.source == "closure":
            raise Unavailable(
                "engine.refresh.source: closure needs the Python class, a config has: rolling"
            )
