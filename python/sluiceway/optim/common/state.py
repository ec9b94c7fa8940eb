"""Takes, checks and restores the parts of a state_dict that all engines share.

All checks come before anything is restored, so that a broken state changes nothing and no second
copy is needed to undo it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.parameters import check_hyperparameters, numbered_parameters

if TYPE_CHECKING:
    from sluiceway.optim.common.engine_optimizer import EngineOptimizer


STATE_KEY = "sluiceway"
SLICES = "slices"  # The states of a batch's slices, in order.
_FORMAT = 1
_COUNTS = ("committed_steps", "skipped_steps")
_MOMENTS = ("exp_avg", "exp_avg_sq")
# A 0-d parameter has 0-d moments; any other 0-d tensor is a number.
_MAY_HAVE_NO_DIMENSIONS = (*_MOMENTS, "master")


def plain_state(state_dict: Any, *, to_host: bool) -> Any:
    """Return a state in plain dicts and lists, with as few copies as possible.

    A value that is no mapping comes back as it is, for the checks to refuse. Tuples in parameter
    groups stay tuples, as in torch. With `to_host`, tensors on other devices are copied to the
    host.
    """
    return _plain(state_dict, to_host) if isinstance(state_dict, Mapping) else state_dict


def _plain(value: Any, to_host: bool, key: Any = None, in_group: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            inner: _plain(each, to_host, inner, in_group or key == "param_groups")
            for inner, each in value.items()
        }
    if isinstance(value, list | tuple):
        key = key if key == "param_groups" else None
        plain = [_plain(each, to_host, key, in_group) for each in value]
        return tuple(plain) if in_group and isinstance(value, tuple) else plain
    is_tensor = isinstance(value, torch.Tensor) and not value.is_meta
    is_number = (is_tensor and value.dim() == 0) or isinstance(value, np.generic)
    if is_number and key not in _MAY_HAVE_NO_DIMENSIONS:
        value, is_tensor = value.item(), False
    if key == "step" and isinstance(value, float) and value.is_integer():
        return int(value)  # torch's own AdamW counts in float32.
    return value.detach().cpu() if to_host and is_tensor else value


def frame_of(optimizer: EngineOptimizer) -> dict[str, Any]:
    """Return the entries of a state that all engines share, without parameters and groups."""
    return {
        "format": _FORMAT,
        "names": optimizer.of_engine.names,
        "committed_steps": optimizer.engine.committed_steps,
        "loss_scale": list(optimizer.loss_scale.state()),
        "skipped_steps": optimizer.skipped_steps,
    }


def engine_states(
    optimizer: EngineOptimizer, states: dict[int, dict[str, Any]]
) -> Iterator[tuple[int, Any]]:
    """Yield each of the engine's weights as its number and its state."""
    for number, index in optimizer.numbered_weights().items():
        weight, numbers = optimizer.weights[index], optimizer.of_engine.numbers(index)
        state = states.get(number, {})
        if not weight.is_batch:
            yield numbers[0], state
            continue
        check_entries(f"the state of {weight.name}", state, (SLICES,))
        slices = state[SLICES]
        if not isinstance(slices, list) or len(slices) != len(numbers):
            raise InvalidArgument(
                f"load_state_dict: {SLICES} of {weight.name} is not a list of {len(numbers)} "
                "states, expected one for each of its slices"
            )
        yield from zip(numbers, slices, strict=True)


def check_frame(optimizer: EngineOptimizer, state_dict: dict[str, Any]) -> None:
    """Refuse a `state_dict` of other parameters or other groups; changes nothing."""
    check_entries("the state_dict", state_dict, ())
    saved = state_dict.get(STATE_KEY)
    if saved is None:
        raise InvalidArgument(
            f"load_state_dict: has no {STATE_KEY!r} entry, expected a state_dict() of "
            f"{type(optimizer).__name__}"
        )
    check_entries(f"its {STATE_KEY!r} entry", saved, ("format",))
    if saved["format"] != _FORMAT:
        raise InvalidArgument(
            f"load_state_dict: format is {saved['format']}, this version reads {_FORMAT}"
        )
    check_entries("the state_dict", state_dict, ("state", "param_groups"))
    check_entries("its state", state_dict["state"], ())
    check_entries(f"its {STATE_KEY!r} entry", saved, ("names", "loss_scale", *_COUNTS))
    _check_names(saved["names"], optimizer.of_engine.names)
    for key in _COUNTS:
        check_count(f"{key} of its {STATE_KEY!r} entry", saved[key])
    try:
        _core.LossScale("dynamic").load(*saved["loss_scale"])
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"load_state_dict: loss_scale is {saved['loss_scale']!r}, expected a scale and two "
            "counts"
        ) from None
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if (found := [len(group["params"]) for group in state_dict["param_groups"]]) != sizes:
        raise InvalidArgument(
            f"load_state_dict: parameter groups of {found} parameters, here of {sizes}; make the "
            "optimizer with the groups of the saved one"
        )
    for group in state_dict["param_groups"]:
        check_hyperparameters(type(optimizer).__name__, group)
    _check_ordinary(optimizer, state_dict["state"])


def _check_names(saved: Any, names: list[str]) -> None:
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        raise InvalidArgument(f"load_state_dict: names is {saved!r}, expected a list of names")
    if saved != names:
        odd = sorted(set(saved) ^ set(names))
        raise InvalidArgument(
            f"load_state_dict: {len(saved)} compressed weights, here {len(names)}; "
            f"differing: {', '.join(odd[:3]) or 'their order'}"
        )


def check_count(what: str, value: Any) -> None:
    if not isinstance(value, Integral) or not 0 <= value < 2**63:
        raise InvalidArgument(
            f"load_state_dict: {what} is {value!r}, expected a whole number in [0, 2^63)"
        )


def _check_ordinary(optimizer: EngineOptimizer, states: dict[int, dict[str, Any]]) -> None:
    """Refuse states of missing parameters, and moments that do not fit their parameters."""
    parameters = numbered_parameters(optimizer.param_groups)
    compressed = optimizer.numbered_weights()
    if beyond := sorted(set(states) - set(range(len(parameters))), key=str):
        raise InvalidArgument(
            f"load_state_dict: has a state of parameter {beyond[0]}, expected 0 to "
            f"{len(parameters) - 1}"
        )
    for number, values in states.items():
        if number in compressed or values == {}:  # Empty if it had a gradient in no step.
            continue
        name = f"parameter {number}"
        check_entries(f"the state of {name}", values, ("step", *_MOMENTS))
        check_count(f"step of {name}", values["step"])
        for moment in _MOMENTS:
            check_moment(f"{moment} of {name}", values[moment], tuple(parameters[number].shape))


def check_moment(what: str, found: Any, shape: tuple[int, ...]) -> None:
    """Refuse a value that is not a float32 tensor of this shape."""
    if not isinstance(found, torch.Tensor):
        raise InvalidArgument(f"load_state_dict: {what} is {found!r}, expected a tensor")
    if tuple(found.shape) != shape:
        raise InvalidArgument(f"load_state_dict: {what} is {tuple(found.shape)}, expected {shape}")
    if found.dtype != torch.float32:
        raise InvalidArgument(f"load_state_dict: {what} is {found.dtype}, expected float32")
    if found.layout != torch.strided or found.is_meta:
        raise InvalidArgument(
            f"load_state_dict: {what} is {found.layout} on {found.device}, expected a dense tensor "
            "with storage"
        )


def check_settings(caller: str, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse a state that was saved with other settings; the error text begins with `caller`."""
    odd = [name for name, value in here.items() if saved.get(name) != value]
    odd = [name for name in odd if name in saved] or odd  # Differences in others follow from these.
    if odd:
        found = "; ".join(
            f"{name} was {saved.get(name)!r} when it was saved, here it is {here[name]!r}"
            for name in odd
        )
        values = "value" if len(odd) == 1 else "values"
        raise InvalidArgument(f"{caller}: {found}; make the optimizer with the saved {values}")


def check_entries(what: str, found: Any, expected: Sequence[str]) -> None:
    """Refuse a value that is no dict or lacks one of the expected keys."""
    if not isinstance(found, dict):
        raise InvalidArgument(f"load_state_dict: {what} is {found!r}, expected a dict")
    for key in expected:
        if key not in found:
            raise InvalidArgument(
                f"load_state_dict: {what} has no {key!r}, expected all of {', '.join(expected)}"
            )


def restore_frame(optimizer: EngineOptimizer, state_dict: dict[str, Any]) -> None:
    """Restore the entries that `check_frame` has checked, and the states of ordinary parameters."""
    saved, compressed = state_dict[STATE_KEY], optimizer.numbered_weights()
    parameters = numbered_parameters(optimizer.param_groups)
    optimizer.state.ordinary.clear()
    for number, values in state_dict["state"].items():
        if number not in compressed:
            p = parameters[number]
            optimizer.state[p] = {
                key: value.to(p.device, copy=True, memory_format=torch.contiguous_format)
                if isinstance(value, torch.Tensor)
                else value
                for key, value in values.items()
            }
    optimizer.engine.committed_steps = saved["committed_steps"]
    optimizer.loss_scale.load(*saved["loss_scale"])
    optimizer._progress.skipped_steps = saved["skipped_steps"]
