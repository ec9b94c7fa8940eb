"""Options of training through compressed gradients, and the section of a config that has them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from sluiceway.config.codec_names import OFFERED
from sluiceway.config.codec_options import CodecOptions, Ratio, ratio_option
from sluiceway.config.engine_section import EngineSection
from sluiceway.config.fields import Positive, SmallCount
from sluiceway.config.options import option
from sluiceway.config.shared_options import BackwardOptions
from sluiceway.config.values import RefreshSection
from sluiceway.errors import Unavailable

if TYPE_CHECKING:
    from sluiceway.config.schema import Config

_CODECS = ("auto", *OFFERED)


class SubspaceOptions(CodecOptions, BackwardOptions):
    """Options for the compression of gradients, and for the residual, the part that is left out."""

    codec: str = option(
        "auto",
        '"auto", "svd", "block_random", "block_pca", "sparse_learned", "sparse_random", "identity" '
        'or "none". auto is svd in runs in which a core was measured to end lower: from 1,024 '
        "tokens a step (256 with 16-bit weights), up to 500 steps, at a ratio of 1/2, if it fits "
        "the budgets and its products and calibration together take less than 6 % of the run (14 % "
        "from 4,096 tokens a step). Else auto is none, the residual alone, which sends nothing; or "
        "block_random, if the residual is not factored.",
        to=["engine", "weight"],
    )
    ratio: Literal["auto"] | Ratio = ratio_option(
        "auto", " auto: 1/2 for svd and codec auto, else 1/4."
    )
    residual: Literal["auto", "factored", "sign", "none"] = option(
        "auto",
        "Use of the part of the gradient that the codec leaves: factored trains with it on the "
        "device, as Adafactor does; sign trains with its sign; none drops it. auto is factored for "
        "codecs with orthonormal columns and for the codec none, else none. The gradient stays on "
        "the device until `step()`. If `accumulate` is a number, residuals are applied, and "
        "gradients freed, during the last backward. Neither `zero_grad()` nor a skipped step "
        "undoes them: a backward without its `step()`, or a save before it, warns once, and "
        "`step()` refuses other rates than its backward had. Under autocast(float16) residuals "
        "wait for `step()` all the same, and follow what scales the gradient, clipping included. "
        "Without it, a GradScaler beside a number is refused at its first step.",
        to=["weight"],
        in_state=True,
    )
    residual_every: SmallCount = option(
        1,
        "Steps between two residuals of a weight. Each is larger by the square root of this "
        "number.",
        to=["engine"],
    )
    second_moment: Literal["auto", "full", "factored"] = option(
        "auto",
        "factored keeps only the means of rows and columns of a core's second moment, which halves "
        "the state on the host. auto is factored for codecs with orthonormal columns, for which "
        "`experiments/fidelity` found no loss, else full.",
        to=["weight"],
        in_state=True,
    )
    weight_rates: Literal["auto", "equal", "rms"] = option(
        "auto",
        "rms multiplies the learning rate of each compressed weight by a factor from 1/4 to 4: "
        "the weight's root mean square when training begins, divided by the mean over all "
        "weights; weight decay stays as it is. equal leaves every weight the rate of its group. "
        "auto is rms beside a factored residual, for which `experiments/regimes` found a gain "
        "with none, block_random and svd, else equal.",
        in_state=True,
    )
    scale: Literal["auto"] | Positive = option(
        "auto", "Factor on the compressed update; auto is 1/f for orthonormal codecs."
    )
    refresh: RefreshSection | None = option(
        None,
        "Times at which projectors are measured and replaced; None: never after the first fit.",
    )
    tier: Literal["host", "device", "auto"] = option(
        "host",
        "Processor on which AdamW updates cores; with device nothing crosses the link.",
        to=["weight"],
    )
    weight_update: Literal["auto", "stochastic", "residual"] = option(
        "auto",
        "Update of 16-bit weights: rounded stochastically, or exact with 2 more bytes for each "
        "element.",
        to=["weight"],
        in_state=True,
    )
    embeddings: Literal["trained", "identity", "frozen"] = option(
        "trained",
        "trained: the residual alone trains embeddings and head, on the device, where their "
        "gradients wait for `step()`. identity: AdamW on the host trains them, and their whole "
        "gradients cross. The codec identity does this, too. frozen: nothing trains them.",
    )
    fused: bool = option(
        False,
        "Linear layers compute cores in backward without forming gradients, as after "
        "`fuse_linears()`. The codec auto is then block_random, at a ratio of 1/2, and residual "
        "auto is none, or factored if `residual_every` is 2 or more: a weight then forms its "
        "gradient in the steps in which its residual trains it. `plan` predicts the step that "
        "needs the most memory: the one in which projectors are fitted or measured from "
        "gradients, if there is one.",
    )
    share_inputs: bool = option(
        False,
        "Weights whose layers read the same input share Q, if the codec draws it: q, k and v of an "
        "attention, gate and up of an MLP, by their names in models of transformers. Fused layers "
        "then project such an input once, and keep it once.",
        in_state=True,
    )

    @model_validator(mode="after")
    def _residual_leaves_something_to_fuse(self) -> Self:
        if self.fused and self.residual in ("factored", "sign") and self.residual_every == 1:
            raise ValueError(
                f"residual is {self.residual!r} with fused and residual_every 1, which needs every "
                "gradient in every step; take residual none, or residual_every of 2 or more"
            )
        return self


class SubspaceSection(SubspaceOptions, EngineSection):
    """The section `engine` of a config with `kind: subspace`; it refuses codecs for experiments."""

    kind: Literal["subspace"] = "subspace"
    # A resume may name what "auto" had come to; another value is refused with the save's codecs.
    changeable: ClassVar[tuple[str, ...]] = ("codec", "ratio", "weight_rates", "activations")
    compared: ClassVar[dict[str, tuple[str, ...]]] = {"activations": ("device", "host")}

    @field_validator("codec")
    @classmethod
    def _is_offered(cls, codec: str) -> str:
        if codec not in _CODECS:
            *first, last = (repr(name) for name in _CODECS)
            close = difflib.get_close_matches(codec, _CODECS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"is {codec!r}, expected {', '.join(first)} or {last}{hint}")
        return codec

    def planned(self, plan: dict[str, Any]) -> Self:
        """Return the section with the plan's codec."""
        found = super().planned(plan)
        return found.model_copy(update={"codec": plan["codec"]} if self.codec == "auto" else {})

    def check_available(self, config: Config) -> None:
        """Refuse a store, and options that only the Python class can take."""
        super().check_available(config)
        if self.refresh and self.refresh.source == "closure":
            raise Unavailable(
                "engine.refresh.source: closure needs the Python class; a config takes rolling"
            )
