"""Selects the parameter groups to train, and the weights in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import check_storage, owners_of
from sluiceway.optim.common.ownership import refuse_taken
from sluiceway.optim.common.parameters import groups_of_model

MASTER = "master"  # Key of a weight's float32 master in the optimizer's state.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class TrainedWeight:
    """One trained parameter, tied or not."""

    name: str
    parameter: nn.Parameter
    group: int
    modules: list[nn.Module]  # Modules that have the parameter.
    tensor: int  # Identifies the weight in the key of its noise.


def trained_groups(
    owner: str, model: nn.Module, weight_decay: float, given: Iterable[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return the given groups, or a group of matrices and one of vectors without decay.

    Raises
    ------
    InvalidArgument
        No parameter is trainable.
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
    """List every parameter of the groups that has elements, once.

    Raises
    ------
    InvalidArgument
        A parameter cannot be trained, another optimizer trains it, or none has elements.
    """
    group_of = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
    weights = []
    for name, p, holders in owners_of(model).values():
        if id(p) not in group_of or p.numel() == 0:
            continue
        _check_weight(owner, name, p)
        modules = [module for module, _ in holders]
        weights.append(TrainedWeight(name, p, group_of[id(p)], modules, _core.stable_hash(name)))
    if not weights:
        raise InvalidArgument(
            f"{owner}: none of the trainable parameters has elements, expected at least one; "
            "train a model that has weights"
        )
    check_storage(owner, [(w.name, w.parameter) for w in weights])
    refuse_taken(owner, [(w.name, w.parameter) for w in weights])
    return weights


def _check_weight(owner: str, name: str, p: torch.Tensor) -> None:
    """Check that the kernels support a parameter.

    Raises
    ------
    InvalidArgument
        They do not; the text names the parameter.
    """
    if p.dtype not in _DTYPES or p.layout is not torch.strided or not p.is_contiguous():
        strides = tuple(p.stride()) if p.layout is torch.strided else p.layout
        raise InvalidArgument(
            f"{owner}: {name} is {p.dtype} with strides {strides}, expected contiguous float32, "
            "bfloat16 or float16; convert or freeze it"
        )
