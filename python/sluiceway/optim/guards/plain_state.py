"""A state_dict as the checks read it: in plain containers, with its numbers as numbers.

Between `state_dict()` and `load_state_dict()` a state belongs to others. Accelerate moves its
tensors to the device that trains, a checkpoint may be read straight onto that device, and wrappers
rebuild dictionaries and lists as types of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

# A parameter without dimensions has moments without dimensions; any other such tensor is a number.
_MOMENTS = ("exp_avg", "exp_avg_sq", "master")


def plain_state(state_dict: Any, *, to_host: bool) -> Any:
    """A state in dicts and lists alone, of which nothing was copied that need not be.

    What is no mapping is returned as it is, for the checks to refuse. Groups of parameters keep
    their lists and tuples, as torch hands them out.

    Parameters
    ----------
    state_dict : mapping
    to_host : bool
        Whether tensors on other devices are copied to the host.
    """
    if not isinstance(state_dict, Mapping):
        return state_dict
    return {
        key: _plain_groups(value) if key == "param_groups" else _plain(value, to_host, key)
        for key, value in state_dict.items()
    }


def _plain(value: Any, to_host: bool, key: Any = None) -> Any:
    if isinstance(value, Mapping):
        return {inner: _plain(each, to_host, inner) for inner, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, to_host) for each in value]
    if key not in _MOMENTS:
        value = _number(value)
    if key == "step" and isinstance(value, float) and value.is_integer():
        return int(value)  # torch's own AdamW counts in float32.
    if to_host and isinstance(value, torch.Tensor) and not value.is_meta:
        return value.detach().cpu()
    return value


def _plain_groups(groups: Any) -> Any:
    if not isinstance(groups, list | tuple):
        return groups
    return [
        {key: _plain_entry(value) for key, value in group.items()}
        if isinstance(group, Mapping)
        else group
        for group in groups
    ]


def _plain_entry(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_number(each) for each in value)
    if isinstance(value, list):
        return [_number(each) for each in value]
    return _number(value)


def _number(value: Any) -> Any:
    """Return the number in a 0-d tensor or numpy scalar; any other value as it is."""
    is_tensor = isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_meta
    return value.item() if is_tensor or isinstance(value, np.generic) else value
