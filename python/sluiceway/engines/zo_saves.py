"""Saves of a run of `kind: zo`, and weights of any step that are made from a save."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sluiceway.engines.resident import OPTIMIZER_FILE
from sluiceway.engines.state_file import write_state
from sluiceway.errors import Error, InvalidArgument
from sluiceway.model.weight_stream import (
    StreamedWeights,
    save_configs,
    saved_buffers,
    write_weights,
)
from sluiceway.optim.common.state import STATE_KEY
from sluiceway.optim.zo.optimizer import ZoSgd


class LoggedWeights:
    """Weights of one step, made from base and log as they are written; a `CopiedWeights`.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers.
    optimizer : ZoSgd
        An optimizer of tier host or disk in mode log, at the base. `close` closes it.
    """

    def __init__(self, model: nn.Module, optimizer: ZoSgd) -> None:
        self._model, self._optimizer = model, optimizer

    @property
    def size(self) -> int:
        """Bytes of all weights and buffers."""
        return sum(t.nbytes for t in self._model.parameters()) + sum(
            t.nbytes for _, t in saved_buffers(self._model)
        )

    def go_to(self, step: int, state: dict[str, Any]) -> None:
        """Move to a step of the line at whose end a state of the optimizer is.

        Raises
        ------
        InvalidArgument
            The base is of a later step, or the state of an earlier one.
        """
        first, last = self._optimizer.base_step, state[STATE_KEY]["committed_steps"]
        if first > last and step != first:
            raise InvalidArgument(
                f"--step: is {step}, expected {last}, the step of the last save, or {first}, the "
                "step of the base that the run has made since"
            )
        if first <= last and not first <= step <= last:
            raise InvalidArgument(
                f"--step: is {step}, expected one of {first} to {last}: the base is of step "
                f"{first} and the last save of step {last}"
            )
        if first <= last:
            self._optimizer.load_state_dict(state)
            self._optimizer.rollback(step)

    def copy(self, to: Path, dtype: str | None, advance: Callable[[int], None]) -> None:
        """Write one file, as a save of tier disk has."""
        write_weights(self._model, to, self._optimizer.theta, dtype, advance)

    def close(self) -> None:
        """Close store and log."""
        self._optimizer.close(theta=False)


class WriteBackSave:
    """A save of mode write_back, perhaps written while steps go on; a `BegunSave`.

    It has the step at which it is made. Weights are read one after the other. The image of a master
    is written together with the master, so that the master is read once.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers.
    optimizer : ZoSgd
    """

    def __init__(self, model: torch.nn.Module, optimizer: ZoSgd) -> None:
        self._model = model
        self._buffers = {name: b.detach().clone() for name, b in saved_buffers(model)}
        self._snapshot = optimizer.snapshot()

    def write(self, folder: Path) -> None:
        """Write the weights and the state of the optimizer."""
        snapshot, images = self._snapshot, {}
        save_configs(self._model, folder)
        with StreamedWeights(self._model, folder) as file:
            for name, t in file.tensors:
                if name in self._buffers:
                    file.put(name, self._buffers[name])
                elif not snapshot.has(t):
                    file.put(name, t.detach())
                elif snapshot.has_image(t):
                    images[snapshot.master(t).untyped_storage().data_ptr()] = name, t
                else:
                    with snapshot.reading(t) as weight:
                        file.put(name, weight)

            @contextlib.contextmanager
            def around(storage: torch.UntypedStorage) -> Iterator[None]:
                name, t = images.pop(storage.data_ptr())
                with snapshot.reading(t) as weight:
                    file.put(name, weight)
                    yield

            write_state(snapshot.state, folder / OPTIMIZER_FILE, around)
            if images:
                missing = ", ".join(name for name, _ in images.values())
                raise Error(f"{folder}: the state lacks the masters of {missing}")

    def finish(self, seconds: float | None = None) -> bool:
        """Wait until the weights were read."""
        return self._snapshot.finish(seconds)

    def close(self) -> None:
        """Let steps write to the weights again."""
        self._snapshot.close()
