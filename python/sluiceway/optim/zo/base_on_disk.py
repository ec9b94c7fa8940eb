"""A base that lies in a store on disk, of which new ones are made from time to time.

A new base holds theta of one step, and earlier steps cannot be reached from it. So its step is at
most that of the last state that was saved or loaded, if there is one; that state can then still be
continued. If possible the base is made at exactly that step: a run continued from the state then
takes the same steps from the same base, bit for bit. A caller that attaches a run's bytes to the
base (`set_run_state`) continues from the base itself, which may then have any step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.values import StoreOptions
from sluiceway.errors import InvalidArgument
from sluiceway.machine.striping import weights_of_new
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import absent
from sluiceway.optim.common.tier_limits import tier_limits
from sluiceway.optim.zo.log_and_base import LogAndBase
from sluiceway.optim.zo.tier import States, Training
from sluiceway.optim.zo.weights import TrainedWeight
from sluiceway.store.drives import drive_warnings
from sluiceway.store.folder import drives_for


class BaseOnDisk(LogAndBase):
    """Opens the arena in the store, or makes it from the parameters, which then need no memory.

    Parameters
    ----------
    training : Training

    Raises
    ------
    InvalidArgument, IoError, Corrupt, OutOfMemory, Unavailable
        Store or log belong to other weights or options, or another process uses them. Parameters
        are unchanged.
    """

    tensor_bytes = 0

    def __init__(self, training: Training) -> None:
        self._saved_step: int | None = None
        self._run: tuple[int, bytes] | None = None  # The run's bytes with their step.
        self._written = self._written_before = 0  # Bytes by new bases, since and before last step.
        self._peaks: dict[str, int] = {}  # Kept from the store when it is closed.
        self._held: _core.ZoArena | None = None
        try:
            super().__init__(training)
        except BaseException:
            self._close_store()
            raise

    # ---- The store ----

    def _identify(self) -> None:
        """Open the store, whose arena identifies its base itself."""
        training, store = self._training, self._training.options.store
        if store is None or store.path is None:
            raise InvalidArgument(
                f"{self.owner}: tier is 'disk' and store is {store!r}, expected "
                "store=sluiceway.StoreOptions(path=...) with a folder on the disk to use"
            )
        with drives_for(training.owner, "disk", store.paths, store.io) as drives:
            self._held = self._opened(drives, store)
        for line in drive_warnings({"drives": self._arena.drives}):
            warnings.warn(f"{training.owner}: {line}", RuntimeWarning, stacklevel=6)

    def _opened(self, drives: list[str], store: StoreOptions) -> _core.ZoArena:
        options: dict[str, Any] = {
            "drives": drives,
            "io": store.io,
            "rate_gbps": store.rate_gbps or 0.0,
            "chunk_bytes": store.chunk,
            "threads": torch.get_num_threads(),
            "limits": tier_limits(self._training.options.budget, self._training.device),
        }
        weights = [(w.name, w.parameter.detach(), w.group) for w in self._training.weights]
        found = _core.ZoArena.open(weights, **options)
        self.is_new = found is None
        if self.is_new and self._training.options.opens:
            raise InvalidArgument(
                f"{self.owner}: {store.place} holds no weights of a run; put the run's store "
                "back there"
            )
        return found or _core.ZoArena.create(
            weights,
            lambda i: weights[i][1].cpu().contiguous(),
            drive_weights=weights_of_new(self.owner, drives, store.io),
            **options,
        )

    @property
    def _arena(self) -> _core.ZoArena:
        if self._held is None:
            raise InvalidArgument(f"{self.owner}: the optimizer is closed; make a new one")
        return self._held

    def _base_arguments(self) -> dict[str, Any]:
        return {"arena": self._arena}

    def take(self) -> None:
        """Free the parameters' memory.

        The constructor does not, so that a store that cannot be made leaves them unchanged.
        """
        for weight in self._training.weights:
            weight.parameter.data = absent(weight.parameter)

    def kept(self, p: nn.Parameter) -> torch.Tensor:
        """Read a parameter's base from the disk."""
        return self._arena.read(self._number[id(p)]).view(p.dtype).view(p.shape)

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Give the parameter theta in memory of its own."""
        p.data = theta

    def memory(self) -> dict[str, int]:
        """Peak bytes of the store by tier: its tables, and the buffers for making bases."""
        if self._held is None:
            return self._peaks
        return {tier: self._held.peak_bytes[tier] for tier in ("host", "pinned")}

    def close(self) -> None:
        """Close engine, log and store."""
        super().close()
        self._close_store()

    def _close_store(self) -> None:
        self._peaks = self.memory()
        self._held = None

    @property
    def base_step(self) -> int:
        """Step whose weights the base holds."""
        return self._arena.base[2]

    # ---- Steps ----

    def use_of(self, weight: TrainedWeight, call: int) -> tuple[Any, ...]:
        """Describe a use by the number of the weight in the arena."""
        p = weight.parameter
        with torch_private.asking_no_class():
            return weight.name, p.data, weight.group, call, p.dim() < 2, self._number[id(p)]

    def begin_step(self) -> None:
        """Make a new base if it is due."""
        self.settle()
        options, now = self._training.options, self.get().next_step
        if not options.has_new_bases:
            return
        most, pending = options.most_steps, now - self.base_step
        due = options.base_steps
        if self._saved_step is not None and not self._has_run():
            due = min(due, most // 2) if self._saved_step == now else most
        if pending < max(due, 1):
            return
        if self._reach() > self.base_step:
            self.consolidate(None)
        else:
            raise InvalidArgument(
                f"{self.owner}.step: {pending} steps are pending on the base of step "
                f"{self.base_step}, expected at most {most}. A new base cannot be later than the "
                "last state_dict(), which has that step; call state_dict() again"
            )

    def commit(
        self, gradients: list[float], rates: list[tuple[float, float]], non_finite: bool
    ) -> None:
        """Write the step to the log."""
        super().commit(gradients, rates, non_finite)
        self._written_before, self._written = self._written, 0

    def consolidated(self) -> dict[str, int]:
        """Bytes of new bases before the last step."""
        return {"consolidated": self._written_before}

    # ---- New bases ----

    def _reach(self) -> int:
        """Last step that a new base may have."""
        now, saved = self.get().next_step, self._saved_step
        return now if saved is None or self._has_run() else min(now, saved)

    def _has_run(self) -> bool:
        return self._run is not None and self._run[0] == self.get().next_step

    def consolidate(self, step: int | None) -> int:
        """Make a new base from theta of a step; return the step of the base."""
        engine = self.get()
        if not self._training.options.has_new_bases:
            raise InvalidArgument(
                f"{self.owner}.consolidate: noise is lowrank, whose updates are summed up "
                "beside the base and not replayed. To get another base, save theta and start a "
                "new run with it"
            )
        self.check_between_steps("consolidate")
        self.settle()
        reach = self._reach()
        wanted = reach if step is None else step
        if not self.base_step <= wanted <= reach:
            saved = "" if self._saved_step is None else " (last state_dict() or last step)"
            raise InvalidArgument(
                f"{self.owner}.consolidate: step is {wanted}, expected "
                f"{self.base_step} (the present base) to {reach}{saved}"
            )
        if wanted > self.base_step:
            before = self._arena.written_bytes
            run = self._run[1] if self._has_run() and wanted == engine.next_step else b""
            try:
                engine.consolidate(wanted, run)
            finally:
                self._written += self._arena.written_bytes - before
                self.forget()
                self.set_gammas()  # Also if only the ring failed, after the base was made.
        return self.base_step

    def set_run_state(self, run: bytes) -> None:
        """Attach the bytes `run` to a base of the present step."""
        self._run = self.get().next_step, run

    @property
    def run_state(self) -> bytes:
        """Bytes of the run that were committed with the base."""
        return self._arena.run_state

    # ---- The log ----

    def rollback(self, step: int) -> None:
        """Continue from an older theta; if a state was saved, new bases stay at or before it."""
        super().rollback(step)
        self._run = None
        if self._saved_step is not None:
            self._saved_step = min(self._saved_step, step)

    def saved(self) -> dict[str, Any]:
        """Return the log for a state, and keep new bases at or before its step."""
        saved = super().saved()
        self._saved_step = saved["log"]["step"]
        return saved

    def load(self, frame: dict[str, Any], states: States, opened: Callable[[], None]) -> None:
        """Continue from a state, and keep new bases at or before its step."""
        super().load(frame, states, opened)
        self._saved_step, self._run = self.get().next_step, None

    def _identity(self) -> dict[str, Any]:
        base_hash, generation, _, _ = self._arena.base
        return {"base": base_hash, "generation": generation}

    def _check_identity(self, log: dict[str, Any]) -> None:
        """Check that a saved log belongs to this base, or to an earlier one of it."""
        base_hash, generation, step, made_with = self._arena.base
        what = f"load_state_dict: the state has step {log['step']} on the base {log['base']}"
        here = f"{self._training.options.store.place} has {base_hash} of step {step}"
        if log["base"] != base_hash and made_with != log["log_id"]:
            raise InvalidArgument(
                f"{what}, but {here}, a base of another run; use the store of the state's run"
            )
        if generation < log["generation"]:
            raise InvalidArgument(
                f"{what} and generation {log['generation']}, but {here} and generation "
                f"{generation}, expected the same or a later one; use the store of the state's run"
            )
        if log["step"] < step:
            raise InvalidArgument(
                f"{what}, but {here}, expected a state of step {step} or later; earlier steps "
                "cannot be reached from a new base, so load a later state"
            )
