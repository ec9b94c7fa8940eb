"""Saves the engine's part of a state of SubspaceAdamW, and restores it bit for bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.state import (
    STATE_KEY,
    check_count,
    check_entries,
    check_moment,
    check_settings,
    engine_states,
)
from sluiceway.optim.subspace.arguments import (
    SHAPES_OF_CORES,
    SubspaceArguments,
    resolve_ratio,
    resolve_residual,
    resolve_second_moment,
    resolve_weight_rates,
)

if TYPE_CHECKING:
    from sluiceway import _core
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW

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


def _settled(options: SubspaceArguments, saved: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a state depends on, with "auto" replaced by the resolved value."""
    return {
        # A state of an earlier version lacks options that were added later.
        **{
            name: saved.get(name, SubspaceArguments.model_fields[name].default)
            for name in SubspaceArguments.names(in_state=True)
        },
        # Earlier versions had only equal rates.
        "weight_rates": resolve_weight_rates(options, saved.get("weight_rates", "equal")),
        "ratio": resolve_ratio(options.codec, saved.get("ratio")),
        "residual": resolve_residual(options, saved.get("residual")),
        "second_moment": resolve_second_moment(options.codec, saved.get("second_moment")),
    }


def engine_state(optimizer: SubspaceAdamW) -> dict[str, Any]:
    """Return the engine's state without the states of its weights."""
    return {
        "arguments": _settled(optimizer.options, dict(optimizer.options)),
        "codecs": [choice["codec"] for choice in optimizer.describe()],
        "refresh": optimizer.engine.refresh_state(),
        "rate_factors": list(optimizer.rate_factors),
    }


def check_engine_state(optimizer: SubspaceAdamW, state_dict: dict[str, Any]) -> None:
    """Refuse a state that was saved with other options, and broken states of weights.

    Raises
    ------
    InvalidArgument, Corrupt
        The text names all options that differ, or the first broken entry. The call changed nothing.
    """
    saved, options = state_dict[STATE_KEY], optimizer.options
    check_entries(f"its {STATE_KEY!r} entry", saved, ("arguments", "codecs", "refresh"))
    choices = optimizer.describe()
    check_entries("arguments", saved["arguments"], ())
    is_list = isinstance(saved["codecs"], list) and len(saved["codecs"]) == len(choices)
    if not is_list or not all(isinstance(codec, str) for codec in saved["codecs"]):
        raise InvalidArgument(
            f"load_state_dict: codecs is {saved['codecs']!r}, expected a name for each of "
            f"{len(choices)} weights"
        )
    theirs, ours = (_settled(options, one) for one in (saved["arguments"], dict(options)))
    for codec, choice in zip(saved["codecs"], choices, strict=True):
        if codec != choice["codec"]:
            theirs["codec"], ours["codec"] = codec, choice["codec"]
    if set(saved["codecs"]) <= {"none", "identity"}:  # There is no core to shape.
        for name in SHAPES_OF_CORES:
            theirs.pop(name), ours.pop(name)
    check_settings("load_state_dict", theirs, ours)
    _check_rate_factors(saved, len(choices))
    states = list(engine_states(optimizer, state_dict["state"]))
    for index, values in states:
        name = choices[index]["name"]
        check_entries(f"the state of {name}", values, _WEIGHT_ENTRIES)
        for count in ("step", "backwards", "residual_step"):
            check_count(f"{count} of {name}", values[count])
        core = (choices[index]["core_rows"], choices[index]["core_cols"])
        check_moment(f"exp_avg of {name}", values["exp_avg"], core)
        factored = choices[index]["second_moment"] == "factored"
        second = (sum(core),) if factored else core
        check_moment(f"exp_avg_sq of {name}", values["exp_avg_sq"], second)
    for index, values in states:
        optimizer.engine.check_weight_state(index, values)
    _try_refresh(optimizer.engine, saved["refresh"])


def _rate_factors(saved: dict[str, Any], count: int) -> Any:
    """Return the saved factors, or 1 for each weight if an earlier version saved the state."""
    return saved.get("rate_factors", [1.0] * count)


def _check_rate_factors(saved: dict[str, Any], count: int) -> None:
    factors = _rate_factors(saved, count)
    is_list = isinstance(factors, list) and len(factors) == count
    if not is_list or not all(isinstance(k, float) and 0 < k < math.inf for k in factors):
        raise InvalidArgument(
            f"load_state_dict: rate_factors is {factors!r}, expected a positive number for each of "
            f"{count} weights"
        )


def _try_refresh(engine: _core.SubspaceEngine, values: Any) -> None:
    before = engine.refresh_state()
    try:
        engine.load_refresh_state(values)
    finally:
        engine.load_refresh_state(before)


def restore_engine_state(optimizer: SubspaceAdamW, state_dict: dict[str, Any]) -> None:
    """Restore a state that `check_engine_state` has accepted."""
    for index, values in engine_states(optimizer, state_dict["state"]):
        optimizer.engine.load_weight_state(index, values)
    saved = state_dict[STATE_KEY]
    optimizer.engine.load_refresh_state(saved["refresh"])
    optimizer.rate_factors = _rate_factors(saved, len(optimizer.of_engine))
