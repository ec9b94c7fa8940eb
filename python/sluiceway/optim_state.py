"""What SubspaceAdamW saves, and how it comes back bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from sluiceway.errors import InvalidArgument

if TYPE_CHECKING:
    from sluiceway.optim import SubspaceAdamW

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


def engine_state(optimizer: SubspaceAdamW) -> dict[str, Any]:
    """Everything beside the parameters' own state and the parameter groups."""
    arguments = optimizer.arguments
    return {
        "format": _FORMAT,
        "arguments": {key: arguments[key] for key in _MUST_MATCH},
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
    for key in _MUST_MATCH:
        if saved["arguments"].get(key) != optimizer.arguments[key]:
            raise InvalidArgument(
                f"load_state_dict: {key} was {saved['arguments'].get(key)!r} when it was saved, "
                f"here it is {optimizer.arguments[key]!r}; make the optimizer with the saved value"
            )
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
    numbers = {id(p): i for i, p in enumerate(numbered_parameters(optimizer.param_groups))}
    for weight in optimizer.weights:
        values = state_dict["state"].get(numbers[id(weight.parameter)], {})
        _check_entries(f"the state of {weight.name}", values, _WEIGHT_ENTRIES)


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
