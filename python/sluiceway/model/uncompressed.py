"""What trains uncompressed, and why: its gradient is whole."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway.model.targets import CompressedWeight

_SHARE = 0.01  # Of all elements that are trained; what is less is not worth a line.


def large_groups(
    compressed: list[CompressedWeight],
    ordinary: list[tuple[str, nn.Parameter]],
    why: dict[str, str],
) -> list[dict[str, Any]]:
    """Group by reason what is not compressed; largest first, none that is a trifle.

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
    """One line a group; `where` says what becomes of it."""
    return [
        f"{g['weights']} uncompressed, {where}: {100 * g['share']:.3g} % of what is trained "
        f"({g['why']})"
        for g in groups
    ]
