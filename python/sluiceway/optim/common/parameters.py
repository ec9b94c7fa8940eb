"""Parameter groups: which parameters are trained, and which hyperparameters AdamW takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import Selection
from sluiceway.optim.common.elsewhere import keeper_of
from sluiceway.optim.common.ownership import refuse_taken


def _is_number(value: Any) -> bool:
    """Return whether a value is one number, also of torch or numpy; a string is not."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False
    return not isinstance(value, str | bytes)


def check_number(
    owner: str, name: str, value: Any, high: float = math.inf, ends: str = "[]"
) -> None:
    """Refuse a value that is no number between 0 and `high`; `ends` has the interval's brackets."""
    inside = (
        _is_number(value) and value >= 0 and (value <= high if ends[1] == "]" else value < high)
    )
    if not inside:
        raise InvalidArgument(
            f"{owner}: {name} is {value!r}, expected in {ends[0]}0, {high:g}{ends[1]}"
        )


# Switches of a group in torch's AdamW, and the one value of each that we support. Other entries,
# `fused` or a scheduler's, change no result.
_FIXED = {
    "maximize": False,
    "amsgrad": False,
    "differentiable": False,
    "decoupled_weight_decay": True,
}


def _numbers(owner: str, group: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters by name; refuse a group that asks for another kind of AdamW."""
    for key, ours in _FIXED.items():
        value = group.get(key)
        if value is not None and bool(value) is not ours:
            raise InvalidArgument(
                f"{owner}: {key} of a parameter group is {value!r}, expected {ours}, the only "
                "supported value; leave it out, or use torch.optim.AdamW"
            )
    try:
        first, second = group.get("betas")
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{owner}: betas are {group.get('betas')}, expected two numbers"
        ) from None
    others = {key: group.get(key) for key in ("lr", "eps", "weight_decay")}
    return {**others, "betas[0]": first, "betas[1]": second}


def check_group(owner: str, group: dict[str, Any]) -> None:
    """Check the kind, and refuse values that are no numbers; an odd number is the user's choice."""
    for key, value in _numbers(owner, group).items():
        if not _is_number(value) or math.isnan(value):
            raise InvalidArgument(
                f"{owner}: {key} of a parameter group is {value!r}, expected a number; set it in "
                "opt.param_groups"
            )


def check_hyperparameters(owner: str, group: dict[str, Any]) -> None:
    """Refuse another kind of AdamW, and lr, betas, eps and weight decay out of AdamW's range."""
    for key, value in _numbers(owner, group).items():
        check_number(owner, key, value, *((1, "[)") if key.startswith("betas") else ()))


def groups_of_model(
    owner: str, model: nn.Module, param_groups: Iterable[Any]
) -> list[dict[str, Any]]:
    """Return dicts for groups in any form of torch.optim: dicts, parameters, named parameters."""
    of_model = {id(p) for p in model.parameters()}
    entries = list(param_groups)
    if not any(isinstance(entry, dict) for entry in entries):
        entries = [{"params": entries}]
    groups = []
    for entry in entries:
        if not isinstance(entry, dict) or "params" not in entry:
            raise InvalidArgument(
                f"{owner}: param_groups holds {type(entry).__name__} without 'params', expected "
                "dicts with 'params', or parameters alone"
            )
        params = entry["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        params = [p[1] if isinstance(p, tuple) and len(p) == 2 else p for p in params]
        if any(id(p) not in of_model for p in params):
            raise InvalidArgument(
                f"{owner}: param_groups holds a tensor that is not a parameter of the model, "
                "expected groups of model.parameters()"
            )
        groups.append({**entry, "params": params})
    return groups


def numbered_parameters(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Return the parameters in the order in which torch numbers them in a state_dict."""
    return [p for group in groups for p in group["params"]]


def choose_parameters(
    owner: str,
    model: nn.Module,
    param_groups: Iterable[dict[str, Any]] | None,
    select: Callable[[Collection[int]], Selection],
    reads_files: bool = False,
) -> tuple[Selection, list[dict[str, Any]]]:
    """Sort the parameters into trained, frozen and left alone ones, and return groups of dicts.

    Parameters in no group stay as they are; without groups, one has all parameters. `select` sorts
    the parameters that have one of the given id(). With `reads_files` the values of a parameter may
    be elsewhere.
    """
    given = [{"params": model.parameters()}] if param_groups is None else param_groups
    groups = groups_of_model(owner, model, given)
    named = {id(p) for group in groups for p in group["params"]}
    chosen = [(name, p) for name, p in model.named_parameters() if id(p) in named]
    refuse_taken(owner, chosen)
    for name, p in chosen:
        if not reads_files and keeper_of(p) is not None:
            raise InvalidArgument(
                f"{owner}: the values of {name} are still in the files of open_streamed(), which "
                "only OffloadAdamW with weights='streamed' reads; load the model with "
                "from_pretrained()"
            )
    wanted = {id(p) for group in groups for p in group["params"] if p.requires_grad}
    selection = select(wanted)
    trained = {id(p) for _, p in selection.trained}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) in trained]
    selection.left_out = [
        (name, p)
        for name, p in model.named_parameters()
        if id(p) in named - trained and p.numel() > 0
    ]
    return selection, groups


def check_model(owner: str, model: Any) -> None:
    """Refuse a model that is no module, for example parameters, or has parameters without shape."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"{owner}: model is a {type(model).__name__}, expected the torch.nn.Module itself, "
            f"whose hooks give the gradients; write {owner}(model, lr=...), and param_groups= for "
            "parameters of your choice"
        )
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise InvalidArgument(
                f"{owner}: {name} has no shape yet; run a forward before you make the optimizer"
            )
