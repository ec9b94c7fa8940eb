"""What SubspaceAdamW saves, and how it comes back bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.subspace.arguments import (
    check_hyperparameters,
    resolve_residual,
    resolve_second_moment,
)

if TYPE_CHECKING:
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW

_FORMAT = 1
# What a state depends on: loading it into an optimizer that differs in these is refused.
_MUST_MATCH = (
    "ratio",
    "d",
    "nnz",
    "block",
    "seed",
    "weight_update",
    "residual",
    "second_moment",
)
_ENGINE_ENTRIES = (
    "arguments",
    "names",
    "codecs",
    "committed_steps",
    "refresh",
    "loss_scale",
    "skipped_steps",
)
_MOMENTS = ("exp_avg", "exp_avg_sq")
_WEIGHT_ENTRIES = (
    "step",
    "exp_avg",
    "exp_avg_sq",
    "codec",
    "low_bits",
    "backwards",
    "residual",
    "residual_step",
)


def _settled(optimizer: SubspaceAdamW, arguments: dict[str, Any]) -> dict[str, Any]:
    """What _MUST_MATCH came to: "auto" is as good as what it stands for."""
    codec, nnz = (optimizer.arguments[key] for key in ("codec", "nnz"))
    return {
        **{key: arguments.get(key) for key in _MUST_MATCH},
        "residual": resolve_residual(codec, arguments.get("residual"), nnz),
        "second_moment": resolve_second_moment(codec, arguments.get("second_moment")),
    }


def engine_state(optimizer: SubspaceAdamW) -> dict[str, Any]:
    """Everything beside the parameters' own state and the parameter groups."""
    return {
        "format": _FORMAT,
        "arguments": _settled(optimizer, optimizer.arguments),
        "names": [weight.name for weight in optimizer.weights],
        "codecs": [choice["codec"] for choice in optimizer.describe()],
        "committed_steps": optimizer.engine.committed_steps,
        "refresh": optimizer.engine.refresh_state(),
        "loss_scale": list(optimizer.loss_scale.state()),
        "skipped_steps": optimizer.skipped_steps,
    }


def check_state(optimizer: SubspaceAdamW, state_dict: dict[str, Any]) -> None:
    """Refuse a `state_dict` that this optimizer cannot take over.

    Raises
    ------
    InvalidArgument
        It is not of this class, or of a run with other arguments; the first difference is named.
    """
    saved = state_dict.get("sluiceway")
    if saved is None:
        raise InvalidArgument(
            "load_state_dict: has no 'sluiceway' entry, expected a state_dict() of SubspaceAdamW"
        )
    if saved.get("format") != _FORMAT:
        raise InvalidArgument(
            f"load_state_dict: format is {saved.get('format')}, this version reads {_FORMAT}"
        )
    _check_entries("the state_dict", state_dict, ("state", "param_groups"))
    _check_entries("its 'sluiceway' entry", saved, _ENGINE_ENTRIES)
    names = [weight.name for weight in optimizer.weights]
    if saved["names"] != names:
        odd = sorted(set(saved["names"]) ^ set(names))
        raise InvalidArgument(
            f"load_state_dict: {len(saved['names'])} compressed weights, here {len(names)}; "
            f"differing: {', '.join(odd[:3]) or 'their order'}"
        )
    for name, codec, choice in zip(names, saved["codecs"], optimizer.describe(), strict=True):
        if codec != choice["codec"]:
            raise InvalidArgument(
                f"load_state_dict: codec of {name} was {codec!r} when it was saved, here it is "
                f"{choice['codec']!r}; make the optimizer with codec={codec!r}"
            )
    theirs = _settled(optimizer, saved["arguments"])
    for key, value in _settled(optimizer, optimizer.arguments).items():
        if theirs[key] != value:
            raise InvalidArgument(
                f"load_state_dict: {key} was {theirs[key]!r} when it was saved, here it is "
                f"{value!r}; make the optimizer with the saved value"
            )
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if (found := [len(group["params"]) for group in state_dict["param_groups"]]) != sizes:
        raise InvalidArgument(
            f"load_state_dict: parameter groups of {found} parameters, here of {sizes}; make the "
            "optimizer with the groups of the saved one"
        )
    for group in state_dict["param_groups"]:
        check_hyperparameters(group)
    _check_moments(optimizer, state_dict["state"])


def _check_moments(optimizer: SubspaceAdamW, states: dict[int, dict[str, Any]]) -> None:
    """Refuse a compressed weight without a state, and moments of another shape than theirs."""
    index_of = {id(weight.parameter): i for i, weight in enumerate(optimizer.weights)}
    parameters = numbered_parameters(optimizer.param_groups)
    if beyond := sorted(set(states) - set(range(len(parameters))), key=str):
        raise InvalidArgument(
            f"load_state_dict: has a state of parameter {beyond[0]}, expected 0 to "
            f"{len(parameters) - 1}"
        )
    for number, parameter in enumerate(parameters):
        values, index = states.get(number, {}), index_of.get(id(parameter))
        if index is None and not values:
            continue  # No step has had a gradient of it.
        name, shapes = f"parameter {number}", dict.fromkeys(_MOMENTS, tuple(parameter.shape))
        entries: Sequence[str] = ("step", *_MOMENTS)
        if index is not None:
            name, entries = optimizer.weights[index].name, _WEIGHT_ENTRIES
            choice = optimizer.engine.describe(index)
            # The engine looks at exp_avg_sq, which has two forms.
            shapes = {"exp_avg": (choice["core_rows"], choice["core_cols"])}
        _check_entries(f"the state of {name}", values, entries)
        for moment, shape in shapes.items():
            if tuple(values[moment].shape) != shape:
                raise InvalidArgument(
                    f"load_state_dict: {moment} of {name} is {tuple(values[moment].shape)}, "
                    f"expected {shape}"
                )


def _check_entries(what: str, found: dict[str, Any], expected: Sequence[str]) -> None:
    for key in expected:
        if key not in found:
            raise InvalidArgument(
                f"load_state_dict: {what} has no {key!r}, expected all of {', '.join(expected)}"
            )


def numbered_parameters(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Parameters in the order in which torch numbers them in a state_dict."""
    return [p for group in groups for p in group["params"]]


def restore(optimizer: SubspaceAdamW, state_dict: dict[str, Any]) -> None:
    """Put the states of parameters and engine back."""
    saved = state_dict["sluiceway"]
    parameters = numbered_parameters(optimizer.param_groups)
    index_of = {id(weight.parameter): i for i, weight in enumerate(optimizer.weights)}
    optimizer.zero_grad()
    optimizer.state.clear()
    for number, values in state_dict["state"].items():
        parameter = parameters[number]
        index = index_of.get(id(parameter))
        if index is not None:
            optimizer.engine.load_weight_state(index, values)
            continue
        optimizer.state[parameter] = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in values.items()
        }
    optimizer.engine.load_refresh_state(saved["refresh"])
    optimizer.engine.committed_steps = saved["committed_steps"]
    optimizer.loss_scale.load(*saved["loss_scale"])
    optimizer.skipped_steps = saved["skipped_steps"]
