"""Saves and restores states of OffloadAdamW, and resumes a run from its store.

    tier disk   {id, generation} of the store, which keeps that commit until the next state is taken
    any tier    with a codec: arguments, all of its settings that the run depends on
    another     step, exp_avg and exp_avg_sq of each parameter; for 16-bit ones the f32 master too

Optimizers of all tiers load a state with tensors. One of tier disk also loads a state that names
its own store.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Return step and moments of each parameter by its number, named as in torch's AdamW."""
    states = {}
    for number, index in optimizer.numbered_weights().items():
        state = optimizer.engine.tensor_state(index)
        if optimizer.weights[index].parameter.dtype == torch.float32:
            del state["master"]  # The parameter is its own master.
        states[number] = state
    return states


class StatesToWrite:
    """States whose tensors have their values only while they are written to a file.

    So host memory has the tensors of one parameter at a time. They are mapped and never come from
    the heap: there, freed tensors left holes that the next ones did not fit into.
    """

    def __init__(self, optimizer: OffloadAdamW) -> None:
        self._optimizer, self._step = optimizer, optimizer.engine.committed_steps
        self._rooms: dict[int, list[mmap.mmap]] = {}  # By the number of a weight.
        self._tensors: dict[int, dict[str, torch.Tensor]] = {}
        self._owners: dict[int, int] = {}  # The weight of a tensor, by the tensor's address.
        self._filled: int | None = None  # The weight whose tensors have their values.

    def states(self) -> dict[int, dict[str, Any]]:
        """Return what `tensors_of` returns, with tensors that take no memory yet."""
        states = {}
        for number, index in self._optimizer.numbered_weights().items():
            parameter = self._optimizer.weights[index].parameter
            self._make(index, parameter.shape)
            keys = _MOMENTS if parameter.dtype == torch.float32 else (*_MOMENTS, "master")
            states[number] = {
                "step": self._optimizer.engine.tensor_steps(index),
                **{key: self._tensors[index][key] for key in keys},
            }
        return states

    def _make(self, index: int, shape: torch.Size) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        rooms = [mmap.mmap(-1, 4 * shape.numel(), flags) for _ in range(3)]
        tensors = [torch.frombuffer(room, dtype=torch.float32).view(shape) for room in rooms]
        self._rooms[index] = rooms
        self._tensors[index] = dict(zip((*_MOMENTS, "master"), tensors, strict=True))
        self._owners.update((tensor.data_ptr(), index) for tensor in tensors)

    @contextmanager
    def __call__(self, storage: torch.UntypedStorage) -> Iterator[None]:
        """Give a tensor its values in the block; storages of others are left alone."""
        index = self._owners.get(storage.data_ptr())
        if index is not None and index != self._filled:
            self._fill(index)
        yield

    def _fill(self, index: int) -> None:
        if self._optimizer.engine.committed_steps != self._step:
            raise InvalidArgument(
                f"state_to_write: the state is of step {self._step}, but the optimizer has taken "
                "another one; write it before the next step"
            )
        if self._filled is not None:
            for room in self._rooms[self._filled]:
                room.madvise(mmap.MADV_DONTNEED)  # Gives its pages back.
        self._filled = index
        self._optimizer.engine.read_tensor_state(index, **self._tensors[index])


def codec_entry(optimizer: OffloadAdamW) -> dict[str, Any]:
    """Return the entry with the codec's settings for a state or commit; empty without a codec."""
    settings = optimizer.core_settings
    return {} if settings == WHOLE else {"arguments": settings}


def _rounding_entry(optimizer: OffloadAdamW) -> dict[str, Any]:
    """Return what the rounding of states depends on; empty for fp32."""
    options = optimizer.options
    return {} if options.state_codec == "fp32" else {"seed": options.seed}


def with_frame(optimizer: OffloadAdamW, state_dict: Any) -> Any:
    """Convert a plain state of torch's own AdamW to our format; any other state stays as it is."""
    if not isinstance(state_dict, dict) or STATE_KEY in state_dict:
        return state_dict
    check_entries("the state_dict", state_dict, ("state", "param_groups"))
    check_entries("its 'state' entry", state_dict["state"], ())
    counts = [v.get("step") for v in state_dict["state"].values() if isinstance(v, dict)]
    steps = max((count for count in counts if isinstance(count, int)), default=0)
    frame = {
        **frame_of(optimizer),
        "committed_steps": steps,
        **codec_entry(optimizer),  # Moments have the parameter's shape with any codec.
    }
    return {**state_dict, STATE_KEY: frame}


def check_states(optimizer: OffloadAdamW, state_dict: dict[str, Any]) -> None:
    """Refuse a state of another store or codec, and tensors that do not fit these parameters.

    Raises
    ------
    InvalidArgument
        The text names the first difference. The call changed nothing.
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
        if not values:  # The parameter had a gradient in no step.
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
            f"load_state_dict: the state names store {store['id']}, but this optimizer uses "
            f"{here}; make the optimizer with tier='disk' and the path of that store"
        )
    generations = dict(engine.generations)
    if store["generation"] not in generations:
        there = " and ".join(f"{g} (step {step})" for g, step in generations.items())
        raise InvalidArgument(
            f"load_state_dict: generation {store['generation']} of store {store['id']} is gone, "
            f"expected {there}; a store keeps only its last state_dict() and its last step; call "
            "opt.resume() to continue from its last step"
        )


def restore_states(optimizer: OffloadAdamW, state_dict: dict[str, Any]) -> None:
    """Restore a state that `check_states` has accepted, and commit it."""
    engine = optimizer.engine
    store = state_dict[STATE_KEY].get("store")
    if store is not None:
        engine.roll_back(store["generation"])
        take_masters(optimizer)
        return
    engine.roll_back(engine.generations[0][0])  # Now the store accepts writes, whatever it held.
    engine.committed_steps = state_dict[STATE_KEY]["committed_steps"]
    for number, index in optimizer.numbered_weights().items():
        values, parameter = state_dict["state"].get(number), optimizer.weight_here(index)
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
    """Set the weights to the masters of the last commit."""
    tensors = optimizer.tensors_of_engine(optimizer.of_engine.tensors())
    optimizer.engine.resume(tensors, optimizer.device.compute())
    optimizer.of_engine.increment_versions(range(len(optimizer.weights)))


def note_run(optimizer: OffloadAdamW, of_user: bytes = b"") -> None:
    """Give the next commit a line of JSON and the user's bytes.

    The line has counts, the settings of a codec other than identity, and the seed of states that
    are rounded.

    Raises
    ------
    InvalidArgument
        A commit has no room for so many bytes. The call changed nothing.
    """
    counts = {
        "format": _RUN_FORMAT,
        "loss_scale": list(optimizer.loss_scale.state()),
        "skipped_steps": optimizer.skipped_steps,
        **codec_entry(optimizer),
        **_rounding_entry(optimizer),
    }
    optimizer.engine.set_run_state(json.dumps(counts).encode() + b"\n" + of_user)


def run_of_user(optimizer: OffloadAdamW) -> bytes:
    """Return the user's bytes in the last commit."""
    return optimizer.engine.run_state().partition(b"\n")[2]


def run_of_commit(optimizer: OffloadAdamW) -> dict[str, Any]:
    """Return the line that `note_run` gave to the last commit, checked.

    Raises
    ------
    Corrupt
        `note_run` did not write this line.
    InvalidArgument
        The line was written with another codec or seed. The text names the first difference.
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
    check_settings("resume", run, _rounding_entry(optimizer))
    return run


def take_up_run(optimizer: OffloadAdamW, run: dict[str, Any]) -> None:
    """Continue the optimizer's counts from `run`, a result of `run_of_commit`."""
    optimizer.loss_scale.load(*run["loss_scale"])
    optimizer._progress.skipped_steps = int(run["skipped_steps"])
