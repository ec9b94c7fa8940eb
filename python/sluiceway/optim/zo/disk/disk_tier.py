"""Weights on disk: what tier host does over another base, and when there is a new one.

A new base holds theta of a step, and nothing leads back from it to steps before. So it is at most
of the last state that was saved or loaded, if there is one: whoever goes on from that finds its
step. It is made at that very step where that is possible: then whoever goes on takes the same
steps, from the same base, bit for bit. Whoever gives bytes of a run goes on from the base itself,
which carries them, and then it is of whatever step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.disk.disk_base import DiskBase
from sluiceway.optim.zo.host.host_tier import HostTier
from sluiceway.optim.zo.rates import GroupUpdate
from sluiceway.optim.zo.tier import Closure, Training


class DiskTier(HostTier):
    """The base is read from a store, once a pass.

    Parameters
    ----------
    training : Training
        Its parameters are moved to the store, or found there.

    Raises
    ------
    InvalidArgument, IoError, Corrupt, OutOfMemory, Unavailable
        Store or log are of other weights or options, or of another process; parameters are as
        they were.
    """

    def __init__(self, training: Training) -> None:
        self._store = DiskBase(training)
        self._saved_step: int | None = None
        self._run: tuple[int, bytes] | None = None  # With the step that it is of.
        self._written = self._written_before = 0  # By new bases, since and until the last step.
        try:
            super().__init__(training, self._store)
        except BaseException:
            self._store.close()
            raise

    def begin(self, closures: Sequence[Closure]) -> None:
        """Begin a step, on a new base if it is time for one."""
        self.log.get()
        self._settle()
        self._make_room()
        super().begin(closures)

    def commit(self, gradients: list[float], updates: list[GroupUpdate], non_finite: bool) -> None:
        """Log the step."""
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
                f"{self._store.step}, which the last state_dict() is of, expected at most {most}; "
                "save another, which a new base may be of"
            )

    def _reach(self) -> int:
        """The last step that a new base may be of."""
        now, saved = self.committed_steps, self._saved_step
        return now if saved is None or self._has_run() else min(now, saved)

    def _has_run(self) -> bool:
        return self._run is not None and self._run[0] == self.committed_steps

    def consolidate(self, step: int | None) -> int:
        """Let theta of a step be the base; return the step that it is of."""
        engine = self.log.get()
        if not self._of.options.has_new_bases:
            raise InvalidArgument(
                f"{self._of.owner}.consolidate: noise is lowrank, whose updates are summed up "
                "beside the base, expected noise that is replayed; save theta, and begin anew "
                "with it, for another base"
            )
        self.check_between_steps("consolidate")
        self._settle()
        reach = self._reach()
        wanted = reach if step is None else step
        if not self._store.step <= wanted <= reach:
            saved = "" if self._saved_step is None else ", that of the last state_dict() or step"
            raise InvalidArgument(
                f"{self._of.owner}.consolidate: step is {wanted}, expected one from "
                f"{self._store.step}, where the base is, to {reach}{saved}"
            )
        if wanted > self._store.step:
            before = self._store.written_bytes
            run = self._run[1] if self._has_run() and wanted == self.committed_steps else b""
            try:
                engine.consolidate(wanted, run)
            finally:
                self._written += self._store.written_bytes - before
                self._base.forget()
                self.set_gammas()  # The ring may have no room when the base is a new one.
        return self._store.step

    # ---- The run ----

    @property
    def store(self) -> DiskBase:
        """Where the base is."""
        return self._store

    def set_run_state(self, run: bytes) -> None:
        """Let a base of the present step carry `run`."""
        self._run = self.committed_steps, run

    # ---- The log ----

    def saved(self) -> dict[str, Any]:
        """What a state holds, which no new base may leave behind."""
        saved = super().saved()
        self._saved_step = saved["step"]
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Likewise of a state that is gone on from."""
        super().load(saved)
        self._saved_step, self._run = self.committed_steps, None

    def rollback(self, step: int) -> None:
        """Go on from an older theta; a state that was saved later is of this line up to here."""
        super().rollback(step)
        self._run = None
        if self._saved_step is not None:
            self._saved_step = min(self._saved_step, step)

    # ---- Numbers ----

    def stats(self) -> dict[str, Any]:
        """As of tier host, and what new bases have written before the last step."""
        found = super().stats()
        if found:
            found["bytes"]["consolidated"] = self._written_before
        return found
