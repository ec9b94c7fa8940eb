"""Which codec each group of weights got, what it costs, and why; for people and summary.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.base.sizes import format_bytes

if TYPE_CHECKING:
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW

_COSTS = ("device_bytes", "host_bytes", "d2h_bytes", "h2d_bytes")


def codec_choices(optimizer: SubspaceAdamW) -> list[dict[str, Any]]:
    """Weights of one shape and codec as one entry, in the order of the model; bytes are sums."""
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
                "why": _reason(weight.identity, optimizer.options.codec, costs["codec"]),
                **dict.fromkeys(_COSTS, 0),
            },
        )
        group["weights"] += 1
        for cost in _COSTS:
            group[cost] += costs[cost]
    return list(groups.values())


def _reason(identity: bool, asked: str, got: str) -> str:
    if identity:
        return "an embedding or the head"
    if asked != "auto":
        return "as configured"
    fits = "fit" if got == "svd" else "do not fit"
    return f"auto: svd's projectors {fits} the device budget"


def choice_lines(choices: list[dict[str, Any]]) -> list[str]:
    """One line a group."""
    return [
        f"{c['weights']} x {c['shape'][0]}x{c['shape'][1]}: {c['codec']}, core "
        f"{c['core'][0]}x{c['core'][1]}, second moment {c['second_moment']}, "
        f"residual {c['residual']}; "
        f"{format_bytes(c['device_bytes'])} on the device, {format_bytes(c['host_bytes'])} on the "
        f"host, {format_bytes(c['d2h_bytes'])} each way a step ({c['why']})"
        for c in choices
    ]
