"""Writes a save of mode parity weight by weight, also while later steps run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from sluiceway.engines.resident import OPTIMIZER_FILE
from sluiceway.engines.state_file import write_state
from sluiceway.errors import Error
from sluiceway.model.weight_stream import StreamedWeights, save_configs, saved_buffers
from sluiceway.optim.zo.optimizer import ZoSgd


class ParitySave:
    """A save of the last step before its constructor was called; a `BegunSave`.

    Weights are read one after the other. The image of a master is written together with the master,
    so that the master is read once.

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
        """Wait, for at most `seconds`, until all weights are read; return True if they are."""
        return self._snapshot.finish(seconds)

    def close(self) -> None:
        """Stop reading, so that steps may write to all weights again."""
        self._snapshot.close()
