"""Saves and loads the part of a state_dict that ZoSgd adds to torch's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sluiceway.config.engines.zo import ZoOptions
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.parameters import check_number, numbered_parameters
from sluiceway.optim.common.state import (
    STATE_KEY,
    check_count,
    check_entries,
    check_moment,
    check_settings,
    plain_state,
)
from sluiceway.optim.zo.tier import States

if TYPE_CHECKING:
    from sluiceway.optim.zo.optimizer import ZoSgd

_FORMAT = 1


def saved_frame(optimizer: ZoSgd) -> dict[str, Any]:
    """Return the step, and all options on which the noise depends."""
    return {
        STATE_KEY: {
            "format": _FORMAT,
            "names": [w.name for w in optimizer._training.weights],
            "committed_steps": optimizer.committed_steps,
            **_settings(optimizer),
            **optimizer._tier.saved(),
        }
    }


def _settings(optimizer: ZoSgd) -> dict[str, Any]:
    options = optimizer.options
    settings = {"seed": options.seed, "noise": options.drawn, "directions": options.directions}
    if options.noise == "lowrank":
        settings |= {"rank": options.rank, "period": options.period}
    settings |= {"tier": options.tier, "mode": options.mode}
    if options.mode == "write_back":
        settings |= {"master": options.master, "wire": options.narrow_wire or "auto"}
    return settings


def take_state(optimizer: ZoSgd, state_dict: Any) -> None:
    """Load a state of the same model and options; its tensors may be on any device.

    Raises
    ------
    InvalidArgument
        Model or options differ; the text names the first difference. Nothing was changed.
    """
    plain = plain_state(state_dict, to_host=False)  # Each tensor is copied to its device later.
    _check_state(optimizer, plain)
    _restore_state(optimizer, plain)


def _check_state(optimizer: ZoSgd, state_dict: dict[str, Any]) -> None:
    """Check that a state has the same model and options, without changing anything.

    Raises
    ------
    InvalidArgument
        Model or options differ; the text names the first difference.
    """
    check_entries("the state_dict", state_dict, ("state", "param_groups", STATE_KEY))
    saved = state_dict[STATE_KEY]
    check_entries(f"its {STATE_KEY!r} entry", saved, ("format", "names", "committed_steps", "seed"))
    if saved["format"] != _FORMAT:
        raise InvalidArgument(
            f"load_state_dict: the state has format {saved['format']}, this version reads {_FORMAT}"
        )
    names = [w.name for w in optimizer._training.weights]
    if saved["names"] != names:
        raise InvalidArgument(
            f"load_state_dict: the state has {len(saved['names'])} weights, but the optimizer has "
            f"{len(names)} or others; make the optimizer with the model of the saved one"
        )
    check_count(f"committed_steps of its {STATE_KEY!r} entry", saved["committed_steps"])
    settings = _settings(optimizer)
    if optimizer._training.may_change_directions:
        check_count("its directions", saved.get("directions"))
        ZoOptions.checked("load_state_dict", {"directions": saved["directions"]})
        settings["directions"] = saved["directions"]
    saved_mode = saved.get("mode", "log")
    if saved_mode == "parity":  # The name in states of an older version.
        saved_mode = "write_back"
    check_settings("load_state_dict", saved | {"mode": saved_mode}, settings)
    _check_groups(optimizer, state_dict["param_groups"])
    parameters = numbered_parameters(optimizer.param_groups)
    check_entries("its state", state_dict["state"], ())
    for number, values in state_dict["state"].items():
        if number not in range(len(parameters)):
            raise InvalidArgument(
                f"load_state_dict: the state has a parameter {number}, expected 0 to "
                f"{len(parameters) - 1}"
            )
        what = f"the state of parameter {number}"
        shapes = optimizer._tier.state_shapes(parameters[number])
        check_entries(what, values, tuple(shapes))
        for key, shape in shapes.items():
            check_moment(f"{key} of parameter {number}", values[key], shape)
    states = _of_parameters(optimizer, state_dict)
    optimizer._tier.check_saved(saved, states, optimizer._changed_weights())


def _of_parameters(optimizer: ZoSgd, state_dict: dict[str, Any]) -> States:
    parameters = numbered_parameters(optimizer.param_groups)
    return {parameters[number]: values for number, values in state_dict["state"].items()}


def _check_groups(optimizer: ZoSgd, saved: Any) -> None:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if (found := [len(group["params"]) for group in saved]) != sizes:
        raise InvalidArgument(
            f"load_state_dict: the state has parameter groups of {found} parameters, but the "
            f"optimizer has {sizes}; make the optimizer with the groups of the saved one"
        )
    for group in saved:
        for key in ("lr", "weight_decay", "gamma"):
            check_number("load_state_dict", key, group.get(key), math.inf, "[)")


def _restore_state(optimizer: ZoSgd, state_dict: dict[str, Any]) -> None:
    """Load a state that `_check_state` has accepted."""
    optimizer._tier.load(state_dict[STATE_KEY], _of_parameters(optimizer, state_dict))
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    optimizer._tier.groups_loaded()
