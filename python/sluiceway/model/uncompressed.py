"""Summary of the weights that train uncompressed, with their whole gradient, and the reasons."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway.model.targets import CompressedWeight

_SHARE = 0.01  # Smallest share of all trained elements that is worth a line.


def large_groups(
    compressed: list[CompressedWeight],
    ordinary: list[tuple[str, nn.Parameter]],
    why: dict[str, str],
) -> list[dict[str, Any]]:
    """Group uncompressed weights by reason, largest first, without very small groups.

    Parameters
    ----------
    compressed : list of CompressedWeight
    ordinary : list of (str, torch.nn.Parameter)
    why : dict
        The reason of each of `ordinary`, by name.
    """
    total = sum(p.numel() for _, p in ordinary)
    total += sum(weight.parameter.numel() for weight in compressed)
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in ordinary:
        group = groups.setdefault(why[name], {"why": why[name], "weights": 0, "elements": 0})
        group["weights"] += 1
        group["elements"] += parameter.numel()
    found = [{**group, "share": group["elements"] / total} for group in groups.values()]
    found.sort(key=lambda group: -group["elements"])
    return [group for group in found if group["share"] > _SHARE]


def group_lines(groups: list[dict[str, Any]], where: str = "on the device") -> list[str]:
    """Format one line per group; `where` is the place at which the groups are trained."""
    return [
        f"{g['weights']} uncompressed, {where}: {100 * g['share']:.3g} % of trained elements "
        f"({g['why']})"
        for g in groups
    ]
