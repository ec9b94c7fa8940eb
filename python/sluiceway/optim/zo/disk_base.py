"""A base that lies in a store on disk, so that parameters need no memory of their own."""

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
from sluiceway.optim.zo.base import absent
from sluiceway.optim.zo.tier import Training
from sluiceway.store.drives import drive_warnings
from sluiceway.store.folder import drives_for


class DiskBase:
    """Opens the arena in the store, or makes it from the parameters.

    Parameters
    ----------
    training : Training

    Raises
    ------
    InvalidArgument, IoError, Corrupt, OutOfMemory, Unavailable
        The store holds other weights, or another process uses it. Parameters are unchanged.
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
        self._peaks: dict[str, int] = {}  # Kept from the store when it is closed.
        for line in drive_warnings({"drives": self._arena.drives}):
            warnings.warn(f"{training.owner}: {line}", RuntimeWarning, stacklevel=6)

    def _store(self) -> StoreOptions:
        owner, store = self._of.owner, self._of.options.store
        if store is None or store.path is None:
            raise InvalidArgument(
                f"{owner}: tier is 'disk' and store is {store!r}, expected "
                "store=sluiceway.StoreOptions(path=...) with a folder on the disk to use"
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
                f"{self._of.owner}: {store.place} holds no weights of a run; put the run's store "
                "back there"
            )
        return found or _core.ZoArena.create(
            weights,
            lambda i: weights[i][1].cpu().contiguous(),
            drive_weights=weights_of_new(self._of.owner, drives, store.io),
            **options,
        )

    # ---- Base ----

    def engine_arguments(self) -> dict[str, Any]:
        """Return the arena, which identifies its base itself."""
        return {"arena": self._arena}

    def take(self) -> None:
        """Free the parameters' memory.

        The constructor does not, so that a store that cannot be made leaves them unchanged.
        """
        for weight in self._of.weights:
            weight.parameter.data = absent(weight.parameter)

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """Read a parameter's base from the disk."""
        return self._arena.read(self.number(p)).view(p.dtype).view(p.shape)

    def number(self, p: nn.Parameter) -> int:
        """Number of a parameter in the arena, which has the optimizer's order."""
        return self._number[id(p)]

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Give the parameter theta in memory of its own."""
        p.data = theta

    def memory(self) -> dict[str, int]:
        """Peak bytes of the store by tier: its tables, and the buffers for making bases."""
        if self._held is None:
            return self._peaks
        return {tier: self._held.peak_bytes[tier] for tier in ("host", "pinned")}

    def identity(self) -> dict[str, Any]:
        """Return hash and generation of the base in use."""
        base_hash, generation, _, _ = self._arena.base
        return {"base": base_hash, "generation": generation}

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Raise InvalidArgument unless a state belongs to this base, or to an earlier one of it."""
        base_hash, generation, step, made_with = self._arena.base
        what = f"load_state_dict: the state has step {saved['step']} on the base {saved['base']}"
        here = f"{self._of.options.store.place} has {base_hash} of step {step}"
        if saved["base"] != base_hash and made_with != saved["log_id"]:
            raise InvalidArgument(
                f"{what}, but {here}, a base of another run; use the store of the state's run"
            )
        if generation < saved["generation"]:
            raise InvalidArgument(
                f"{what} and generation {saved['generation']}, but {here} and generation "
                f"{generation}, expected the same or a later one; use the store of the state's run"
            )
        if saved["step"] < step:
            raise InvalidArgument(
                f"{what}, but {here}, expected a state of step {step} or later; earlier steps "
                "cannot be reached from a new base, so load a later state"
            )

    def close(self) -> None:
        """Close the store, and keep its peak bytes."""
        self._peaks = self.memory()
        self._held = None

    @property
    def _arena(self) -> _core.ZoArena:
        if self._held is None:
            raise InvalidArgument(f"{self._of.owner}: the optimizer is closed; make a new one")
        return self._held

    # ---- New bases ----

    @property
    def step(self) -> int:
        """Step whose weights the base holds."""
        return self._arena.base[2]

    @property
    def run_state(self) -> bytes:
        """Bytes of the run that were committed with the base."""
        return self._arena.run_state

    @property
    def written_bytes(self) -> int:
        """Bytes that this process has written to the store."""
        return self._arena.written_bytes
