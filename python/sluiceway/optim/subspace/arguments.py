"""From the options of SubspaceAdamW to its engine."""

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

FUSED_CODEC = "block_random"
"""What "auto" is where linears are fused: svd's products would be as large as those saved."""
SHAPES_OF_CORES = ("ratio", "d", "nnz", "block")
"""Options that say what a core is like; a weight without one has no use for them."""
# What embeddings that go through the identity codec have in place of the options.
_IDENTITY = {"codec": "identity", "d": 0, "residual": "none", "second_moment": "full"}


class SubspaceArguments(SharedOptions, SubspaceOptions):
    """What SubspaceAdamW takes by name."""

    tokens_per_step: Count = option(
        1024,
        'Of all micro-batches: codec="auto" goes by it, as codecs are made here, before a forward '
        "could tell. Where `accumulate` is no number it counts them as one.",
        to=["engine"],
    )
    total_steps: Count = option(
        1000,
        'Of the whole training: codec="auto" takes svd for short ones, and spreads its '
        "calibration over them.",
        to=["engine"],
    )
    why: str = option("", "", alias="_why")  # It has its codec, where a run was resumed.
    # Above this root mean square, a residual's update is clipped; experiments leave the clip out.
    residual_max_rms: float = option(1.0, "", alias="_residual_max_rms", to=["engine"])


def resolve_codec(options: SubspaceOptions) -> str:
    """The codec of the options; "auto" is left to the engine, but where linears are fused."""
    return FUSED_CODEC if options.fused and options.codec == "auto" else options.codec


def resolve_ratio(codec: str, ratio: float | str) -> float | str:
    """What "auto" stands for: half of each side for svd, as less of it did not pay, else a quarter.

    What chooses svd or no core, and where that core is none at all, count as svd.
    """
    if ratio != "auto":
        return ratio
    return 0.5 if codec in ("auto", "svd", "none") else 0.25


def resolve_residual(options: SubspaceOptions, residual: str) -> str:
    """What "auto" stands for: factored where the codec leaves a complement of its core.

    Where linears are fused it needs turns, since no gradient is formed in most steps.
    """
    if residual != "auto":
        return residual
    has_turns = not options.fused or options.residual_every > 1
    return "factored" if has_turns and _leaves_complement(options.codec, options.nnz) else "none"


def resolve_second_moment(codec: str, second_moment: str) -> str:
    """What "auto" stands for: factored where it was measured to cost nothing, else as AdamW's."""
    if second_moment != "auto":
        return second_moment
    return "factored" if _leaves_complement(codec) else "full"


def resolve_weight_rates(options: SubspaceOptions, weight_rates: str) -> str:
    """What "auto" stands for: rms beside a factored residual, as that was measured to gain."""
    if weight_rates != "auto":
        return weight_rates
    return "rms" if resolve_residual(options, options.residual) == "factored" else "equal"


def has_orthonormal_columns(codec: str, nnz: int) -> bool:
    """Whether P^T P and Q^T Q are the identity: just then the core has no part in what is left."""
    return _leaves_complement(codec, nnz)


def _leaves_complement(codec: str, nnz: int = 0) -> bool:
    """Whether nothing of the core is in what is left; nnz 0: however many nonzeros a row has.

    Baselines of the experiments stay as they were published, without a residual.
    """
    offered = {family.name: family for family in _core.codec_families() if family.offered}
    return codec == "auto" or (codec in offered and offered[codec].leaves_complement(nnz))


def weight_keywords(
    options: SubspaceOptions, seed: int, identity: bool = False, q_of: str = ""
) -> dict[str, Any]:
    """What `_core` takes of one weight beside its name and shape: plans and engines say the same.

    Parameters
    ----------
    options : SubspaceOptions
    seed : int
    identity : bool
        The weight is an embedding or the head: its whole gradient crosses.
    q_of : str
        What weights have in common that share Q; empty: this one shares none.
    """
    ratio = resolve_ratio(options.codec, options.ratio)
    given = options.keywords_for("weight") | {"seed": seed, "q_of": q_of, "ratio": ratio}
    settled = {
        "codec": resolve_codec(options),
        "d": options.d or 0,
        "residual": resolve_residual(options, options.residual),
        "second_moment": resolve_second_moment(options.codec, options.second_moment),
    }
    return given | (_IDENTITY if identity else settled)


def residual_at_once(options: SharedOptions) -> bool:
    """Whether residuals need not wait for `step()`: backwards are promised, the loss is plain."""
    return options.accumulate != "auto" and options.loss_scale is None


def engine_for(
    model: nn.Module,
    weights: list[CompressedWeight],
    options: SubspaceArguments,
    device: DeviceOps,
) -> _core.SubspaceEngine:
    """Build the engine that the options describe."""
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
        residual_at_once=residual_at_once(options),
        device_cpu=pin[0],
        lane_cpu=pin[1],
        lane_threads=lane_threads(options.lane_threads, device.compute(), options.pin is not None),
    )
    shared = first_of_input(weights) if options.share_inputs else {}
    specs = [
        _core.WeightSpec(
            name,
            matrix,
            **weight_keywords(options, options.seed, w.identity, shared.get(w.name, "")),
        )
        for w in weights
        for name, matrix in zip(w.names, w.matrices(w.parameter.detach()), strict=True)
    ]
    return _core.SubspaceEngine(engine_options, specs)


def _refresh_keywords(refresh: RefreshSection | None) -> dict[str, Any]:
    """Each value by its name behind `refresh_`; without a policy the codec's own interval."""
    names = RefreshSection.model_fields
    values = {f"refresh_{name}": getattr(refresh or Refresh(), name) for name in names}
    return values if refresh else values | {"refresh_every": None}
