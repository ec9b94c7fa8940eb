"""What of a model is trained: parameter groups, and the weights in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import check_storage, owners_of
from sluiceway.optim.common.ownership import refuse_taken
from sluiceway.optim.common.parameters import groups_of_model
from sluiceway.optim.zo.weights import TrainedWeight, check_weight


def trained_groups(
    owner: str, model: nn.Module, weight_decay: float, given: Iterable[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Those that are given, or matrices, and vectors without decay.

    Raises
    ------
    InvalidArgument
        Nothing is trained.
    """
    if given is not None:
        groups = groups_of_model(owner, model, given)
        wanted = [{**g, "params": [p for p in g["params"] if p.requires_grad]} for g in groups]
    else:
        trained = [p for p in model.parameters() if p.requires_grad]
        wanted = [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ]
    wanted = [group for group in wanted if group["params"]]
    if not wanted:
        raise InvalidArgument(
            f"{owner}: {type(model).__name__} has no trainable parameter, expected at least one; "
            "call requires_grad_(True)"
        )
    return wanted


def trained_weights(
    owner: str, model: nn.Module, groups: list[dict[str, Any]]
) -> list[TrainedWeight]:
    """Every parameter of the groups, once.

    Raises
    ------
    InvalidArgument
        One that cannot be trained, or is by another optimizer.
    """
    group_of = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
    weights = []
    for name, p, holders in owners_of(model).values():
        if id(p) not in group_of:
            continue
        check_weight(owner, name, p)
        modules = [module for module, _ in holders]
        weights.append(TrainedWeight(name, p, group_of[id(p)], modules, _core.stable_hash(name)))
    check_storage(owner, [(w.name, w.parameter) for w in weights])
    refuse_taken(owner, [(w.name, w.parameter) for w in weights])
    return weights
