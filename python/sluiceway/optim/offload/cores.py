"""Chooses the gradients of OffloadAdamW that cross the link compressed, and describes them.

Gradients of linear layers' matrices cross as cores if the matrix has chunks of the store to itself.
All other gradients cross whole. Both kinds train in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluiceway import _core
from sluiceway.config.engines.offload import OffloadOptions
from sluiceway.model.targets import CompressedWeight
from sluiceway.model.uncompressed import group_lines, large_groups
from sluiceway.optim.common import torch_private

if TYPE_CHECKING:
    from sluiceway.optim.offload.optimizer import OffloadAdamW

_SHARES = "matrices of less than half a chunk"


def target_of(options: OffloadOptions) -> str | Sequence[str] | None:
    """Return the target for `select_whole`, the weights for the codec; None without a codec."""
    return None if options.codec == "identity" else options.target


def core_options(options: OffloadOptions, seed: int, spill: str = "gradient") -> _core.CoreOptions:
    """Build the options of cores for the compiled module; plans and engines share them.

    `spill` is the resolved option.
    """
    settled = {"d": options.d or 0, "seed": seed, "spill": spill}
    return _core.CoreOptions(**options.keywords_for("weight") | settled)


def tensor_specs(weights: list[CompressedWeight]) -> list[_core.TensorSpec]:
    """Describe each weight for the compiled module.

    Of each its name, shape and dtype, whether its gradient may cross as a core, whether its weight
    is stored, whether it stays on the device, whether it is frozen, and stored in 8 bits.
    """
    with torch_private.asking_no_class():
        return [
            _core.TensorSpec(
                w.name,
                w.parameter.detach(),
                compressed=not w.identity,
                streamed=w.streamed,
                resident=w.resident,
                frozen=w.frozen,
                fp8=w.fp8,
            )
            for w in weights
        ]


def core_settings(optimizer: OffloadAdamW) -> dict[str, Any]:
    """Return the settings that a resumed run must share, as plain values, the codec first."""
    options = optimizer.options
    if options.codec == "identity":
        return WHOLE
    settings = {name: getattr(options, name) for name in type(options).names(in_state=True)}
    count = sum(group["weights"] for group in core_groups(optimizer))
    return {**settings, "compressed_weights": count}


WHOLE = {"codec": "identity"}
"""The settings of a state that was saved without any."""


def core_groups(optimizer: OffloadAdamW) -> list[dict[str, Any]]:
    """List weights whose gradients cross as cores, one entry per shape, in the model's order."""
    groups: dict[tuple[int, ...], dict[str, Any]] = {}
    for one in optimizer.describe():
        core, shape = [one["core_rows"], one["core_cols"]], one["shape"]
        if core[0] == 0:
            continue
        entry = {"weights": 0, "shape": shape, "codec": optimizer.options.codec, "core": core}
        groups.setdefault((*shape, *core), entry)["weights"] += 1
    return list(groups.values())


def whole_groups(optimizer: OffloadAdamW, why: dict[str, str]) -> list[dict[str, Any]]:
    """List the weights whose gradients cross whole although there is a codec, by reason.

    Parameters
    ----------
    why : dict
        Reasons by name for the weights whose gradients the codec cannot compress.
    """
    has_core = [one["core_rows"] > 0 for one in optimizer.describe()]
    pairs = list(zip(optimizer.weights, has_core, strict=True))
    compressed = [weight for weight, core in pairs if core]
    whole = [(weight.name, weight.parameter) for weight, core in pairs if not core]
    reasons = {name: why.get(name, _SHARES) for name, _ in whole}
    return large_groups(compressed, whole, reasons)


def core_lines(
    groups: list[dict[str, Any]], whole: list[dict[str, Any]], why_spilled: str = ""
) -> list[str]:
    """Describe the cores in one line, then the choice of `spill`, then the whole gradients."""
    cores = ", ".join(
        f"{g['weights']} x {g['shape'][0]}x{g['shape'][1]} as {g['core'][0]}x{g['core'][1]}"
        for g in groups
    )
    codec = f"{groups[0]['codec']}, gradients of {cores}" if groups else "no gradient is compressed"
    chosen = [f"spill: {why_spilled}"] if groups and why_spilled else []
    return [f"cores: {codec}", *chosen, *group_lines(whole, "whole over the link")]
