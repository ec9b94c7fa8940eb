"""What a state of OffloadAdamW holds, and how a run goes on from it or from its store.

    tier disk   {id, generation} of the store, whose commit stays until the next state is taken
    both        with a codec arguments, all of its settings that the run depends on
    tier host   step, exp_avg and exp_avg_sq of each parameter, of 16-bit ones the f32 master too

Either optimizer loads what has tensors; the first loads what names its own store.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from sluiceway import _core
from sluiceway.errors import Corrupt, InvalidArgument
from sluiceway.optim.common.state import (
    STATE_KEY,
    check_count,
    check_entries,
    check_moment,
    check_settings,
    frame_of,
)
from sluiceway.optim.offload.cores import WHOLE
from sluiceway.optim.offload.edited_weights import master_of

if TYPE_CHECKING:
    from sluiceway.optim.offload.optimizer import OffloadAdamW

_MOMENTS = ("exp_avg", "exp_avg_sq")
_RUN_FORMAT = 1


def tensors_of(optimizer: OffloadAdamW) -> dict[int, dict[str, Any]]:
    """Step and moments of each parameter by its number, as torch's AdamW names them."""
    states = {}
    for number, index in optimizer.numbered_weights().items():
        state = optimizer.engine.tensor_state(index)
        if optimizer.weights[index].parameter.dtype == torch.float32:
            del state["master"]  # The parameter itself.
        states[number] = state
    return states


def codec_entry(optimizer: OffloadAdamW) -> dict[str, Any]:
    """Settings of the codec, as a state and a commit hold them; nothing without one."""
    settings = optimizer.core_settings
    return {} if settings == WHOLE else {"arguments": settings}


def with_frame(optimizer: OffloadAdamW, state_dict: Any) -> Any:
    """A plain state of torch's own AdamW as one of ours; any other as it is."""
    if not isinstance(state_dict, dict) or STATE_KEY in state_dict:
        return state_dict
    check_entries("the state_dict", state_dict, ("state", "param_groups"))
    check_entries("its 'state' entry", state_dict["state"], ())
    counts = [v.get("step") for v in state_dict["state"].values() if isinstance(v, dict)]
    steps = max((count for count in counts if isinstance(count, int)), default=0)
    frame = {
        **frame_of(optimizer),
        "committed_steps": steps,
        **codec_entry(optimizer),  # Moments are whole with any codec.
    }
    return {**state_dict, STATE_KEY: frame}


def check_states(optimizer: OffloadAdamW, state_dict: dict[str, Any]) -> None:
    """Refuse a state of another store or codec, and tensors that are not of these parameters.

    Raises
    ------
    InvalidArgument
        The first difference is named; nothing was changed.
    """
    arguments = state_dict[STATE_KEY].get("arguments", WHOLE)
    check_entries("arguments", arguments, ())
    check_settings("load_state_dict", arguments, optimizer.core_settings)
    store = state_dict[STATE_KEY].get("store")
    if store is not None:
        _check_store(optimizer, store)
        return
    for number, index in optimizer.numbered_weights().items():
        values, weight = state_dict["state"].get(number), optimizer.weights[index]
        if not values:  # No step has had a gradient of it.
            continue
        check_entries(f"the state of {weight.name}", values, ("step", *_MOMENTS))
        check_count(f"step of {weight.name}", values["step"])
        for key in (*_MOMENTS, *(["master"] if "master" in values else [])):
            check_moment(f"{key} of {weight.name}", values[key], tuple(weight.parameter.shape))


def _check_store(optimizer: OffloadAdamW, store: Any) -> None:
    engine = optimizer.engine
    check_entries("its store", store, ("id", "generation"))
    check_count("generation of its store", store["generation"])
    if optimizer.options.tier != "disk" or store["id"] != engine.store_id:
        on_disk = optimizer.options.tier == "disk"
        here = f"store {engine.store_id} ({optimizer.options.place})" if on_disk else "host memory"
        raise InvalidArgument(
            f"load_state_dict: it names store {store['id']}, here is {here}, expected that store; "
            "make the optimizer with tier='disk' and its path"
        )
    generations = dict(engine.generations)
    if store["generation"] not in generations:
        there = " and ".join(f"{g} (step {step})" for g, step in generations.items())
        raise InvalidArgument(
            f"load_state_dict: generation {store['generation']} of store {store['id']} is gone, "
            f"expected {there}; only the last state that was taken stays, beside the last step, "
            "with which opt.resume() goes on"
        )


def restore_states(optimizer: OffloadAdamW, state_dict: dict[str, Any]) -> None:
    """Put back what was checked, durably."""
    engine = optimizer.engine
    store = state_dict[STATE_KEY].get("store")
    if store is not None:
        engine.roll_back(store["generation"])
        take_masters(optimizer)
        return
    engine.roll_back(engine.generations[0][0])  # Whatever the store held, it may be written to.
    engine.committed_steps = state_dict[STATE_KEY]["committed_steps"]
    for number, index in optimizer.numbered_weights().items():
        values, parameter = state_dict["state"].get(number), optimizer.weights[index].parameter
        zeros = {"step": 0, **{key: torch.zeros(parameter.shape) for key in _MOMENTS}}
        values = values or zeros
        engine.load_tensor_state(
            index,
            *(values[key].contiguous() for key in _MOMENTS),
            master_of(parameter, values.get("master")),
            int(values["step"]),
        )
    note_run(optimizer)
    engine.commit()


def take_masters(optimizer: OffloadAdamW) -> None:
    """The weights become what the masters of the last commit say."""
    optimizer.engine.resume(optimizer.of_engine.tensors(), optimizer.device.compute())
    optimizer.of_engine.increment_versions(range(len(optimizer.weights)))


def note_run(optimizer: OffloadAdamW, of_user: bytes = b"") -> None:
    """What the next commit has beside states: a line of JSON, and bytes of the user.

    The line has counts, and settings of a codec that is not the identity.

    Raises
    ------
    InvalidArgument
        There is no room for so many; nothing was changed.
    """
    counts = {
        "format": _RUN_FORMAT,
        "loss_scale": list(optimizer.loss_scale.state()),
        "skipped_steps": optimizer.skipped_steps,
        **codec_entry(optimizer),
    }
    optimizer.engine.set_run_state(json.dumps(counts).encode() + b"\n" + of_user)


def run_of_user(optimizer: OffloadAdamW) -> bytes:
    """What the user gave to the last commit."""
    return optimizer.engine.run_state().partition(b"\n")[2]


def run_of_commit(optimizer: OffloadAdamW) -> dict[str, Any]:
    """What `note_run` gave to the last commit of itself, checked.

    Raises
    ------
    Corrupt
        It is not what `note_run` wrote.
    InvalidArgument
        It was written with another codec; the first difference is named.
    """
    try:
        run = json.loads(optimizer.engine.run_state().partition(b"\n")[0])
        known = run["format"] == _RUN_FORMAT
        int(run["skipped_steps"])
        settings = dict(run.get("arguments", WHOLE))
        _core.LossScale("dynamic").load(*run["loss_scale"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"resume: the run state cannot be read, {error}") from None
    if not known:
        raise Corrupt(f"resume: format of the run state is {run['format']}, expected {_RUN_FORMAT}")
    check_settings("resume", settings, optimizer.core_settings)
    return run


def take_up_run(optimizer: OffloadAdamW, run: dict[str, Any]) -> None:
    """Go on with the counts of a `run_of_commit`."""
    optimizer.loss_scale.load(*run["loss_scale"])
    optimizer._progress.skipped_steps = int(run["skipped_steps"])
