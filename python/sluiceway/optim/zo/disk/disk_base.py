"""The base in a store on disk: parameters have no memory of their own."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.values import StoreOptions
from sluiceway.errors import InvalidArgument
from sluiceway.machine.striping import weights_of_new
from sluiceway.optim.common.tier_limits import tier_limits
from sluiceway.optim.zo.host.base import absent
from sluiceway.optim.zo.tier import Training
from sluiceway.store.drives import drive_warnings
from sluiceway.store.folder import drives_for


class DiskBase:
    """An arena: opened where it is there, else made of the parameters.

    Parameters
    ----------
    training : Training

    Raises
    ------
    InvalidArgument, IoError, Corrupt, OutOfMemory, Unavailable
        The store is of other weights, or of another process; parameters are as they were.
    """

    tensor_bytes = 0

    def __init__(self, training: Training) -> None:
        self._of = training
        store = self._store()
        self.log_folder = training.options.path
        self._number = {id(w.parameter): i for i, w in enumerate(training.weights)}
        self.is_new = False
        with drives_for(training.owner, "disk", store.paths, store.io) as drives:
            self._held: _core.ZoArena | None = self._opened(drives, store)
        self._peaks: dict[str, int] = {}  # Of a store that is closed.
        for line in drive_warnings({"drives": self._arena.drives}):
            warnings.warn(f"{training.owner}: {line}", RuntimeWarning, stacklevel=6)

    def _store(self) -> StoreOptions:
        owner, store = self._of.owner, self._of.options.store
        if store is None or store.path is None:
            raise InvalidArgument(
                f"{owner}: tier is 'disk' and store is {store!r}, expected "
                "store=sluiceway.StoreOptions(path=...) to name a folder on the disk to be used"
            )
        return store

    def _opened(self, drives: list[str], store: StoreOptions) -> _core.ZoArena:
        options: dict[str, Any] = {
            "drives": drives,
            "io": store.io,
            "chunk_bytes": store.chunk,
            "threads": torch.get_num_threads(),
            "limits": tier_limits(self._of.options.budget, self._of.device),
        }
        weights = [(w.name, w.parameter.detach(), w.group) for w in self._of.weights]
        found = _core.ZoArena.open(weights, **options)
        self.is_new = found is None
        if self.is_new and self._of.options.opens:
            raise InvalidArgument(
                f"{self._of.owner}: {store.place} holds no weights of a run, expected its store; "
                "put it back there"
            )
        return found or _core.ZoArena.create(
            weights,
            lambda i: weights[i][1].cpu().contiguous(),
            drive_weights=weights_of_new(self._of.owner, drives, store.io),
            **options,
        )

    # ---- Base ----

    def engine_arguments(self) -> dict[str, Any]:
        """The arena, which knows what its base is."""
        return {"arena": self._arena}

    def take(self) -> None:
        """Free the parameters' memory.

        Not before: a store that cannot be made has changed nothing.
        """
        for weight in self._of.weights:
            weight.parameter.data = absent(weight.parameter)

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """Read from the disk."""
        return self._arena.read(self.number(p)).view(p.dtype).view(p.shape)

    def number(self, p: nn.Parameter) -> int:
        """As the optimizer has them."""
        return self._number[id(p)]

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Memory of its own."""
        p.data = theta

    def memory(self) -> dict[str, int]:
        """Of the store: its tables, and the buffers in which bases were made."""
        if self._held is None:
            return self._peaks
        return {tier: self._held.peak_bytes[tier] for tier in ("host", "pinned")}

    def identity(self) -> dict[str, Any]:
        """Hash and generation of the base in use."""
        base_hash, generation, _, _ = self._arena.base
        return {"base": base_hash, "generation": generation}

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Refuse a state that neither this base nor one before it belongs to."""
        base_hash, generation, step, made_with = self._arena.base
        what = f"load_state_dict: is of step {saved['step']} on the base {saved['base']}"
        here = f"{self._of.options.store.place} has {base_hash} of step {step}"
        if saved["base"] != base_hash and made_with != saved["log_id"]:
            raise InvalidArgument(
                f"{what}, and {here}, expected a base of its run; give the store that belongs to it"
            )
        if generation < saved["generation"]:
            raise InvalidArgument(
                f"{what} and generation {saved['generation']}, and {here} and generation "
                f"{generation}, expected that one or a later one; give the store that belongs to it"
            )
        if saved["step"] < step:
            raise InvalidArgument(
                f"{what}, and {here}, expected a state of step {step} or later, since nothing "
                "leads back from a new base; load a later state"
            )

    def close(self) -> None:
        """Let go of the store."""
        self._peaks = self.memory()
        self._held = None

    @property
    def _arena(self) -> _core.ZoArena:
        if self._held is None:
            raise InvalidArgument(f"{self._of.owner}: it is closed, expected an open optimizer")
        return self._held

    # ---- New bases ----

    @property
    def step(self) -> int:
        """That the base holds."""
        return self._arena.base[2]

    @property
    def run_state(self) -> bytes:
        """What it was committed with."""
        return self._arena.run_state

    @property
    def written_bytes(self) -> int:
        """To the store, by this process."""
        return self._arena.written_bytes
