"""Parameter groups: which parameters are trained, and which hyperparameters AdamW takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import Selection, embedding_parameters, select_weights
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


def check_kind(owner: str, group: dict[str, Any]) -> None:
    """Refuse a group that asks for another kind of AdamW, and betas that are not two values."""
    for key, ours in _FIXED.items():
        value = group.get(key)
        if value is not None and bool(value) is not ours:
            raise InvalidArgument(
                f"{owner}: {key} of a parameter group is {value!r}, expected {ours}, the only "
                "supported value; leave it out, or use torch.optim.AdamW"
            )
    try:
        _, _ = group.get("betas")
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{owner}: betas are {group.get('betas')}, expected two numbers"
        ) from None


def check_group(owner: str, group: dict[str, Any]) -> None:
    """Check the kind, and refuse values that are no numbers; an odd number is the user's choice."""
    check_kind(owner, group)
    numbers = {key: group.get(key) for key in ("lr", "eps", "weight_decay")}
    numbers.update((f"betas[{i}]", beta) for i, beta in enumerate(group["betas"]))
    for key, value in numbers.items():
        if not _is_number(value) or math.isnan(value):
            raise InvalidArgument(
                f"{owner}: {key} of a parameter group is {value!r}, expected a number; set it in "
                "opt.param_groups"
            )


def check_hyperparameters(owner: str, group: dict[str, Any]) -> None:
    """Refuse another kind of AdamW, and lr, betas, eps and weight decay out of AdamW's range."""
    check_number(owner, "lr", group.get("lr"))
    check_kind(owner, group)
    for index, beta in enumerate(group["betas"]):
        check_number(owner, f"betas[{index}]", beta, 1, "[)")
    check_number(owner, "eps", group.get("eps"))
    check_number(owner, "weight_decay", group.get("weight_decay"))


def groups_of_model(
    owner: str, model: nn.Module, param_groups: Iterable[Any]
) -> list[dict[str, Any]]:
    """Return dicts for groups in any form of torch.optim: dicts, parameters, or named parameters.

    Raises
    ------
    InvalidArgument
        The groups hold something other than parameters of the model.
    """
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
) -> tuple[Selection, list[dict[str, Any]]]:
    """Sort the parameters into trained, frozen and left alone ones, and return groups of dicts.

    Parameters in no group stay as they are.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    param_groups : iterable of dict, optional
        Groups as in torch; default is one group of all parameters.
    select : callable
        Sorts the parameters that have one of the given id().

    Raises
    ------
    InvalidArgument
        Options and groups contradict each other, or nothing is left to train.
    """
    given = [{"params": model.parameters()}] if param_groups is None else param_groups
    groups = groups_of_model(owner, model, given)
    named = {id(p) for group in groups for p in group["params"]}
    refuse_taken(owner, [(name, p) for name, p in model.named_parameters() if id(p) in named])
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


def select_compressed(
    owner: str, model: nn.Module, options: Any, wanted: Collection[int], written: bool
) -> Selection:
    """Sort the parameters that have an id() in `wanted`.

    Embeddings and head are frozen unless the options say otherwise. If the user wrote the groups,
    all their parameters are trained, as with torch's optimizers, embeddings and head through the
    identity codec.

    Parameters
    ----------
    options : SubspaceOptions
    written : bool
        Whether the user chose by groups what to train.

    Raises
    ------
    InvalidArgument
        Options and groups contradict each other, or nothing is left to compress.
    """
    if written:
        _refuse_contradiction(owner, model, options, wanted)
    embeddings = "identity" if written else options.embeddings
    return select_weights(model, options.target, embeddings, wanted)


def _refuse_contradiction(
    owner: str, model: nn.Module, options: Any, named: Collection[int]
) -> None:
    """Refuse embeddings that the user asked both to train and to freeze."""
    if options.embeddings != "frozen" or "embeddings" not in options.model_fields_set:
        return
    for name, parameter in embedding_parameters(model):
        if id(parameter) in named:
            raise InvalidArgument(
                f"{owner}: {name} is in param_groups, but embeddings='frozen'; "
                "leave it out of the groups, or leave embeddings= out to train it"
            )


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
