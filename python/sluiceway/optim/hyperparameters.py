"""Parameter groups and what AdamW reads of them: what is refused, and with which words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument


def _is_number(value: Any) -> bool:
    """Whether it is one number, of torch or numpy too; its spelling is none."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False
    return not isinstance(value, str | bytes)


def check_number(
    owner: str, name: str, value: Any, high: float = math.inf, ends: str = "[]"
) -> None:
    """Refuse what is no number between 0 and `high`; `ends` says whether they are in it."""
    inside = (
        _is_number(value) and value >= 0 and (value <= high if ends[1] == "]" else value < high)
    )
    if not inside:
        raise InvalidArgument(
            f"{owner}: {name} is {value!r}, expected in {ends[0]}0, {high:g}{ends[1]}"
        )


def check_hyperparameters(owner: str, group: dict[str, Any]) -> None:
    """Refuse learning rates, betas, eps and weight decay that AdamW cannot have."""
    check_number(owner, "lr", group["lr"])
    try:
        _, _ = group["betas"]
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{owner}: betas are {group['betas']}, expected two numbers"
        ) from None
    for index, beta in enumerate(group["betas"]):
        check_number(owner, f"betas[{index}]", beta, 1, "[)")
    check_number(owner, "eps", group["eps"])
    check_number(owner, "weight_decay", group["weight_decay"])


def trainable_groups(
    owner: str, model: nn.Module, param_groups: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The parameter groups as torch.optim takes them, without parameters that are frozen."""
    of_model = {id(p) for p in model.parameters()}
    groups = []
    for given in param_groups:
        group = dict(given)
        params = group["params"]
        group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
        if any(id(p) not in of_model for p in group["params"]):
            raise InvalidArgument(
                f"{owner}: param_groups holds a tensor that is not a parameter of the model, "
                "expected groups of model.parameters()"
            )
        group["params"] = [p for p in group["params"] if p.requires_grad]
        groups.append(group)
    return groups


def numbered_parameters(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Parameters in the order in which torch numbers them in a state_dict."""
    return [p for group in groups for p in group["params"]]
