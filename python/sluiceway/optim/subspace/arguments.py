"""Options of SubspaceAdamW, and the engine that they describe."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway import _core
from sluiceway.config.engines.subspace import SubspaceOptions
from sluiceway.config.fields import Count
from sluiceway.config.options import option
from sluiceway.config.shared_options import SharedOptions
from sluiceway.config.values import Refresh, RefreshSection
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.model.one_input import first_of_input
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common.tier_limits import lane_threads, parameter_bytes, tier_limits
from sluiceway.optim.subspace.learner import TorchLearner

FUSED_CODEC = "block_random"
"""codec="auto" means this for fused linears: products of svd would cost what fusing saves."""
SHAPES_OF_CORES = ("ratio", "d", "nnz", "block")
"""Options that shape a core; a weight without a core ignores them."""
# Embeddings and head have these values in place of the options: whole gradients cross, or the
# residual alone trains them.
_IDENTITY = {"codec": "identity", "d": 0, "residual": "none", "second_moment": "full"}
_RESIDUAL = {"codec": "none", "d": 0, "residual": "factored", "second_moment": "full"}


class SubspaceArguments(SharedOptions, SubspaceOptions):
    """Options that SubspaceAdamW takes by name."""

    tokens_per_step: Count = option(
        1024,
        'Tokens of one step, summed over its micro-batches. codec="auto" needs this number here, '
        "because codecs are made before the first forward. Unless `accumulate` is a number, "
        "auto counts a step as one micro-batch.",
        to=["engine"],
    )
    total_steps: Count = option(
        1000,
        'Steps of the whole training. codec="auto" chooses svd for a short training, and spreads '
        "the cost of its calibration over these steps.",
        to=["engine"],
    )
    why: str = option("", "", alias="_why")  # A resumed run passes the reason for its codec.
    # A residual's update is clipped above this root mean square; experiments leave the clip out.
    residual_max_rms: float = option(1.0, "", alias="_residual_max_rms", to=["engine"])


def resolve_codec(options: SubspaceOptions) -> str:
    """Return the codec; the engine resolves "auto", except for fused linears."""
    return FUSED_CODEC if options.fused and options.codec == "auto" else options.codec


def resolve_ratio(codec: str, ratio: float | str) -> float | str:
    """Resolve ratio="auto" to 0.5 for svd, as a smaller ratio did not pay, and to 0.25 otherwise.

    The codecs "auto" and "none" count as svd.
    """
    if ratio != "auto":
        return ratio
    return 0.5 if codec in ("auto", "svd", "none") else 0.25


def resolve_residual(options: SubspaceOptions, residual: str) -> str:
    """Resolve residual="auto" to factored if a residual R of the codec has P^T R Q = 0.

    Fused linears form no gradient in most steps, so they need `residual_every` above 1.
    """
    if residual != "auto":
        return residual
    has_turns = not options.fused or options.residual_every > 1
    return "factored" if has_turns and _leaves_complement(options.codec, options.nnz) else "none"


def resolve_second_moment(codec: str, second_moment: str) -> str:
    """Resolve second_moment="auto" to factored if measured to cost no quality, else to AdamW's."""
    if second_moment != "auto":
        return second_moment
    return "factored" if _leaves_complement(codec) else "full"


def resolve_weight_rates(options: SubspaceOptions, weight_rates: str) -> str:
    """Resolve weight_rates="auto" to rms beside a factored residual, which was measured to gain."""
    if weight_rates != "auto":
        return weight_rates
    return "rms" if resolve_residual(options, options.residual) == "factored" else "equal"


def has_orthonormal_columns(codec: str, nnz: int) -> bool:
    """Return whether P^T P and Q^T Q are the identity, so that a residual R has P^T R Q = 0."""
    return _leaves_complement(codec, nnz)


def _leaves_complement(codec: str, nnz: int = 0) -> bool:
    """Return whether a residual R has P^T R Q = 0; nnz 0 means any number of nonzeros a row.

    The experiments' baselines have no residual, as published.
    """
    offered = {family.name: family for family in _core.codec_families() if family.offered}
    return codec == "auto" or (codec in offered and offered[codec].leaves_complement(nnz))


def resolve_embeddings(options: SubspaceOptions) -> str:
    """Return how embeddings and head are trained: the codec identity trains them, too."""
    if options.embeddings == "trained" and options.codec == "identity":
        return "identity"
    return options.embeddings


def weight_keywords(
    options: SubspaceOptions, seed: int, weight: CompressedWeight | None = None, q_of: str = ""
) -> dict[str, Any]:
    """Build the keywords of `_core.WeightSpec` for one weight; plans and engines share them.

    Parameters
    ----------
    options : SubspaceOptions
    seed : int
    weight : CompressedWeight, optional
        None: one that is neither an embedding nor the head.
    q_of : str
        Name shared by all weights that share one Q; empty if this weight shares none.
    """
    ratio = resolve_ratio(options.codec, options.ratio)
    given = options.keywords_for("weight") | {"seed": seed, "q_of": q_of, "ratio": ratio}
    settled = {
        "codec": resolve_codec(options),
        "d": options.d or 0,
        "residual": resolve_residual(options, options.residual),
        "second_moment": resolve_second_moment(options.codec, options.second_moment),
    }
    if weight is not None and weight.is_embedding:
        settled = _IDENTITY if weight.identity else _RESIDUAL
    return given | settled


def residual_at_once(options: SharedOptions) -> bool:
    """Return whether residuals may train before `step()`: with `accumulate` and no loss scale."""
    return options.accumulate != "auto" and options.loss_scale is None


def engine_for(
    model: nn.Module,
    weights: list[CompressedWeight],
    options: SubspaceArguments,
    device: DeviceOps,
    shared: bool,
) -> _core.SubspaceEngine:
    """Build the engine that the options describe; `shared` by several ranks."""
    link, pin = options.link, options.pin or (-1, -1)
    engine_options = _core.EngineOptions(
        **options.keywords_for("engine") | {"codec": resolve_codec(options)},
        **_refresh_keywords(options.refresh),
        link=(link.d2h_gbps, link.h2d_gbps, link.latency_us) if link else (0.0, 0.0, 0.0),
        compute=device.compute(),
        seed=options.seed,
        limits=tier_limits(options.budget, device),
        resident_bytes=parameter_bytes(model),
        max_norm=options.max_norm or 0.0,
        promised_backwards=0 if options.accumulate == "auto" else options.accumulate,
        residual_at_once=residual_at_once(options) and not shared,
        shared=shared,
        device_cpu=pin[0],
        lane_cpu=pin[1],
        lane_threads=lane_threads(options.lane_threads, device.compute(), options.pin is not None),
    )
    shared = first_of_input(weights) if options.share_inputs else {}
    specs = [
        _core.WeightSpec(
            name,
            matrix,
            **weight_keywords(options, options.seed, w, shared.get(w.name, "")),
        )
        for w in weights
        for name, matrix in zip(w.names, w.matrices(w.parameter.detach()), strict=True)
    ]
    return _core.SubspaceEngine(engine_options, specs, TorchLearner())


def _refresh_keywords(refresh: RefreshSection | None) -> dict[str, Any]:
    """Return each value as `refresh_NAME`; without a policy the codec's own interval applies."""
    names = RefreshSection.model_fields
    values = {f"refresh_{name}": getattr(refresh or Refresh(), name) for name in names}
    return values if refresh else values | {"refresh_every": None}
