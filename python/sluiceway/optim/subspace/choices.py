"""Describes the codec of each group of weights, its cost and the reason, as text and as values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluiceway.base.sizes import format_bytes
from sluiceway.optim.subspace.arguments import SHAPES_OF_CORES, SubspaceArguments, resolve_ratio

if TYPE_CHECKING:
    from sluiceway import _core
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW

AS_CONFIGURED = "as configured"
FOR_FUSED = "auto: of fused linears"
_OF_PROJECTORS = (*SHAPES_OF_CORES, "share_inputs", "refresh", "scale", "second_moment")
_OF_CORES = ("wire", "tier")
_COSTS = ("device_bytes", "host_bytes", "d2h_bytes", "h2d_bytes")


@dataclass(frozen=True)
class RunLength:
    """Figures by which codec="auto" decides, and the names of those that the user gave."""

    tokens_per_step: int
    total_steps: int
    backwards: int
    given: Collection[str] = ("tokens_per_step", "total_steps", "accumulate")

    def said(self, option: str, figure: str) -> str:
        """Return `figure`, marked as assumed if the user did not give `option`."""
        return figure if option in self.given else f"{figure} (assumed; say {option}=)"


def codec_choices(optimizer: SubspaceAdamW) -> list[dict[str, Any]]:
    """List one entry per shape and codec, in the model's order, with the sums of their bytes."""
    groups: dict[tuple, dict[str, Any]] = {}
    weights = optimizer.of_engine.spread(optimizer.weights)
    for weight, costs in zip(weights, optimizer.describe(), strict=True):
        shape = list(weight.shape)
        core = [costs["core_rows"], costs["core_cols"]]
        key = (*shape, costs["codec"], *core, costs["residual"], costs["second_moment"])
        group = groups.setdefault(
            key,
            {
                "weights": 0,
                "shape": shape,
                "codec": costs["codec"],
                "core": core,
                "residual": costs["residual"],
                "second_moment": costs["second_moment"],
                "why": costs["why"],
                **dict.fromkeys(_COSTS, 0),
            },
        )
        group["weights"] += 1
        for cost in _COSTS:
            group[cost] += costs[cost]
    return list(groups.values())


def reasons(optimizer: SubspaceAdamW) -> list[str]:
    """Say why each of the engine's weights has its codec."""
    options = optimizer.options
    if options.codec != "auto":
        why = options.why or AS_CONFIGURED
    elif options.fused:
        why = FOR_FUSED
    else:
        why = automatic_reason(optimizer.engine.automatic, _run_of(options))
    weights = optimizer.of_engine.spread(optimizer.weights)
    return ["an embedding or the head" if weight.is_embedding else why for weight in weights]


def _run_of(options: SubspaceArguments) -> RunLength:
    """Return the run's figures as the engine counts them: accumulate="auto" is one backward."""
    backwards = 1 if options.accumulate == "auto" else options.accumulate
    given = [name for name in options.model_fields_set if getattr(options, name) != "auto"]
    return RunLength(options.tokens_per_step, options.total_steps, backwards, given)


def automatic_reason(choice: _core.AutoCodec, run: RunLength) -> str:
    """Say why codec="auto" made this choice."""
    if choice.name == "none":
        decisive = _cost_of_svd(choice, run) if choice.pays else _what_pays(choice, run)
        return f"auto: without a core nothing crosses the link; {decisive}"
    better = "svd was measured to end lower than no core; " if choice.pays else ""
    return f"auto: {better if choice.name == 'svd' else ''}{_cost_of_svd(choice, run)}"


def _what_pays(choice: _core.AutoCodec, run: RunLength) -> str:
    """Say how this run differs from the measured runs in which a core improved the loss."""
    measured = "a core was measured to end lower only"
    if run.tokens_per_step < choice.least_tokens:
        tokens = run.said("tokens_per_step", f"here are {run.tokens_per_step:,}")
        return f"{measured} from {choice.least_tokens:,} tokens a step on, {tokens}"
    if run.total_steps > choice.most_steps:
        steps = run.said("total_steps", f"here are {run.total_steps:,}")
        return f"{measured} in runs of up to {choice.most_steps:,} steps, {steps}"
    return f"{measured} at ratio {choice.measured_ratio:g}, here is another"


def _cost_of_svd(choice: _core.AutoCodec, run: RunLength) -> str:
    if choice.shortage is not None:
        tier, needed, free = choice.shortage
        return (
            f"svd needs {format_bytes(needed)} of {tier} memory, and {format_bytes(free)} are left"
        )
    tokens = run.said("tokens_per_step", f"{run.tokens_per_step:,} tokens")
    plural = "" if run.backwards == 1 else "s"
    backwards = run.said("accumulate", f"{run.backwards} backward{plural}")
    steps = run.said("total_steps", f"{run.total_steps:,} steps")
    takes, share = ("takes", "") if choice.name == "svd" else ("would take", "only ")
    return (
        f"svd {takes} {100 * (choice.products + choice.calibration):.3g} % of the time "
        f"({100 * choice.products:.2f} % of a step of {tokens} in {backwards} for its products, "
        f"{100 * choice.calibration:.2f} % of {steps} for its calibration), and auto takes it "
        f"{share}below {100 * choice.most:.0f} %"
    )


def rate_lines(factors: list[float]) -> list[str]:
    """Describe the range of learning rates; empty if all weights have their group's rate."""
    if not factors or {f"{factor:.2f}" for factor in factors} == {"1.00"}:
        return []
    return [
        f"learning rates by size of weight: {min(factors):.2f} to {max(factors):.2f} of the group's"
    ]


def clip_lines(optimizer: SubspaceAdamW, max_norm: float | None) -> list[str]:
    """Say which weights max_norm does not clip; empty if every weight has a core."""
    coreless = sum(costs["codec"] == "none" for costs in optimizer.describe())
    if max_norm is None or not coreless:
        return []
    return [
        f"max_norm {max_norm:g} does not clip the {coreless} without a core: the update of each is "
        "held to a root mean square of 1 by itself"
    ]


def coreless_lines(optimizer: SubspaceAdamW) -> list[str]:
    """Name the changed options that have no effect, since no weight has a core."""
    options, codecs = optimizer.options, {costs["codec"] for costs in optimizer.describe()}
    if not codecs <= {"none", "identity"}:
        return []
    names = _OF_PROJECTORS if "identity" in codecs else (*_OF_PROJECTORS, *_OF_CORES)
    fields = type(options).model_fields
    idle = [name for name in names if getattr(options, name) != fields[name].default]
    # A resumed run has the standard ratio though the user gave none, and "auto" uses any ratio.
    is_standard = options.ratio == resolve_ratio(options.codec, "auto")
    if "ratio" in idle and (options.codec == "auto" or is_standard):
        idle.remove("ratio")
    if not idle:
        return []
    return [f"{', '.join(idle)}: no effect, as no weight's gradient has a core"]


def choice_lines(choices: list[dict[str, Any]]) -> list[str]:
    """Describe each group in one line."""
    return [_choice_line(choice) for choice in choices]


def _choice_line(choice: dict[str, Any]) -> str:
    weights, plural = choice["weights"], "s" if choice["weights"] > 1 else ""
    head = f"{weights} weight{plural} of {choice['shape'][0]} x {choice['shape'][1]}: "
    bytes_of = {cost: format_bytes(choice[cost]) for cost in _COSTS}
    if choice["codec"] == "none":
        rule = {"factored": "as Adafactor does", "sign": "by its sign"}[choice["residual"]]
        return (
            f"{head}no core; the device trains with the gradient {rule}, and keeps "
            f"{bytes_of['device_bytes']} for it ({choice['why']})"
        )
    return (
        f"{head}{choice['codec']} with cores of {choice['core'][0]} x {choice['core'][1]}, "
        f"residual {choice['residual']}; {bytes_of['device_bytes']} on the device, "
        f"{bytes_of['host_bytes']} on the host, {bytes_of['d2h_bytes']} each way a step "
        f"({choice['why']})"
    )
