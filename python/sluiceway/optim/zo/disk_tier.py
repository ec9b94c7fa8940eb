"""Tier disk: like tier host with a base on disk, of which it makes new ones from time to time.

A new base holds theta of one step, and earlier steps cannot be reached from it. So its step is at
most that of the last state that was saved or loaded, if there is one; that state can then still be
continued. If possible the base is made at exactly that step: a run continued from the state then
takes the same steps from the same base, bit for bit. A caller that attaches a run's bytes to the
base (`set_run_state`) continues from the base itself, which may then have any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.disk_base import DiskBase
from sluiceway.optim.zo.host_tier import HostTier
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.tier import Closure, Training


class DiskTier(HostTier):
    """Streams the base from a store, once per pass.

    Parameters
    ----------
    training : Training
        Its parameters are moved to the store, or replaced by those in an existing store.

    Raises
    ------
    InvalidArgument, IoError, Corrupt, OutOfMemory, Unavailable
        Store or log belong to other weights or options, or another process uses them. Parameters
        are unchanged.
    """

    def __init__(self, training: Training) -> None:
        self._store = DiskBase(training)
        self._saved_step: int | None = None
        self._run: tuple[int, bytes] | None = None  # The run's bytes with their step.
        self._written = self._written_before = 0  # Bytes by new bases, since and before last step.
        try:
            super().__init__(training, self._store)
        except BaseException:
            self._store.close()
            raise

    def begin(self, closures: Sequence[Closure]) -> None:
        """Begin a step, after making a new base if it is due."""
        self.log.get()
        self._settle()
        self._make_room()
        super().begin(closures)

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Write the step to the log."""
        super().commit(gradients, updates, non_finite)
        self._written_before, self._written = self._written, 0

    # ---- New bases ----

    def _make_room(self) -> None:
        options, now = self._of.options, self.committed_steps
        if not options.has_new_bases:
            return
        most, pending = options.most_steps, now - self._store.step
        due = options.base_steps
        if self._saved_step is not None and not self._has_run():
            due = min(due, most // 2) if self._saved_step == now else most
        if pending < max(due, 1):
            return
        if self._reach() > self._store.step:
            self.consolidate(None)
        else:
            raise InvalidArgument(
                f"{self._of.owner}.step: {pending} steps are pending on the base of step "
                f"{self._store.step}, expected at most {most}. A new base cannot be later than the "
                "last state_dict(), which has that step; call state_dict() again"
            )

    def _reach(self) -> int:
        """Last step that a new base may have."""
        now, saved = self.committed_steps, self._saved_step
        return now if saved is None or self._has_run() else min(now, saved)

    def _has_run(self) -> bool:
        return self._run is not None and self._run[0] == self.committed_steps

    def consolidate(self, step: int | None) -> int:
        """Make a new base from theta of a step; return the step of the base."""
        engine = self.log.get()
        if not self._of.options.has_new_bases:
            raise InvalidArgument(
                f"{self._of.owner}.consolidate: noise is lowrank, whose updates are summed up "
                "beside the base and not replayed. To get another base, save theta and start a "
                "new run with it"
            )
        self.check_between_steps("consolidate")
        self._settle()
        reach = self._reach()
        wanted = reach if step is None else step
        if not self._store.step <= wanted <= reach:
            saved = "" if self._saved_step is None else " (last state_dict() or last step)"
            raise InvalidArgument(
                f"{self._of.owner}.consolidate: step is {wanted}, expected "
                f"{self._store.step} (the present base) to {reach}{saved}"
            )
        if wanted > self._store.step:
            before = self._store.written_bytes
            run = self._run[1] if self._has_run() and wanted == self.committed_steps else b""
            try:
                engine.consolidate(wanted, run)
            finally:
                self._written += self._store.written_bytes - before
                self._base.forget()
                self.set_gammas()  # Also if only the ring failed, after the base was made.
        return self._store.step

    # ---- The run ----

    @property
    def store(self) -> DiskBase:
        """Return the store with the base."""
        return self._store

    def set_run_state(self, run: bytes) -> None:
        """Attach the bytes `run` to a base of the present step."""
        self._run = self.committed_steps, run

    # ---- The log ----

    def saved(self) -> dict[str, Any]:
        """Return the tier's part of a state, and keep new bases at or before its step."""
        saved = super().saved()
        self._saved_step = saved["step"]
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from a state, and keep new bases at or before its step."""
        super().load(saved)
        self._saved_step, self._run = self.committed_steps, None

    def rollback(self, step: int) -> None:
        """Continue from an older theta; if a state was saved, new bases stay at or before it."""
        super().rollback(step)
        self._run = None
        if self._saved_step is not None:
            self._saved_step = min(self._saved_step, step)

    # ---- Numbers ----

    def stats(self) -> dict[str, Any]:
        """Return the numbers of tier host, and the bytes of new bases before the last step."""
        found = super().stats()
        if found:
            found["bytes"]["consolidated"] = self._written_before
        return found
