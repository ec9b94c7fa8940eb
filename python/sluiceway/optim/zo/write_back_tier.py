"""Tier host in mode write_back: each step is written into weights in host memory [MeZO, ZO2].

When a weight arrives for a pass, the updates that it lacks are applied, and it goes back while the
forwards run. So a master is at the last step only after `flush`, which all readers outside of a
pass call first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.zo.base_weights import BaseWeights
from sluiceway.optim.zo.device_weights import MASTER
from sluiceway.optim.zo.host_tier import StreamedTier
from sluiceway.optim.zo.master_base import MasterBase
from sluiceway.optim.zo.master_weights import MasterWeights
from sluiceway.optim.zo.tier import Closure, Training
from sluiceway.optim.zo.weight_snapshot import WeightSnapshot
from sluiceway.optim.zo.weights import TrainedWeight
from sluiceway.optim.zo.written_engine import WrittenEngine


class WriteBackTier(StreamedTier):
    """Streams masters and keeps no log.

    Parameters
    ----------
    training : Training
        Its parameters are moved to the masters.
    state : dict
        The optimizer's state, which holds the masters that are not parameters.

    Raises
    ------
    InvalidArgument
        A weight cannot have a master of this type.
    Exception
        After any exception, the model and the state are unchanged.
    """

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        self._masters, self._written = MasterBase(training, state), WrittenEngine(training)
        self._number = {id(w.parameter): i for i, w in enumerate(training.weights)}
        self._has_history = False  # Before the first step, a state may give weights any step.
        try:
            super().__init__(training, self._masters, self._written)
        except BaseException:
            self._written.close()
            self._masters.put_back()
            raise

    def _theta_of_base(self) -> BaseWeights:
        self._written.get().hold(self._masters.held())
        return MasterWeights(self._of, self._written, self._masters)

    def _use_of(self, weight: TrainedWeight, call: int) -> tuple[Any, ...]:
        p = weight.parameter
        return self._number[id(p)], call, p.dim() < 2

    # ---- Steps ----

    def _know(self, closures: Sequence[Closure]) -> None:
        super()._know(closures)
        self._written.lags = True

    def begin(self, closures: Sequence[Closure]) -> None:
        """Begin a step, with fresh copies of weights that are not streamed."""
        self._base.forget()
        super().begin(closures)

    def _commit(self, g: list[float], rates: list[tuple[float, float]], non_finite: bool) -> None:
        self._has_history = True
        self._written.get().commit(g, rates)

    def set_gammas(self) -> None:
        """Set every gamma to 1: weight decay is applied to the weights."""
        for group in self._of.param_groups:
            group["gamma"] = 1.0

    def flush(self) -> None:
        """Bring every master to the last step."""
        self._settle()
        self._written.flush()

    def snapshot(self, state: dict[str, Any]) -> WeightSnapshot:
        """Return a snapshot of the last step's weights, with the state of that step.

        Raises
        ------
        InvalidArgument
            A pass is under way, or another snapshot is open.
        Error
            A lane failed.
        """
        self.check_between_steps("snapshot")
        self._settle()
        taken = self._written.get().begin_snapshot()
        return WeightSnapshot(
            taken, state, self._masters, self._number, self._base.made, self._finish_snapshot
        )

    def drop_snapshot(self) -> None:
        """Close the open snapshot, because nobody will read it."""
        if self._written.is_open:
            self._written.get().drop_snapshot()

    def _finish_snapshot(self, seconds: float | None) -> bool:
        if not self._written.is_open:
            return True
        with suppress(Error):  # The engine reports the error too, also to the reader.
            self._settle()
        return self._written.get().finish_snapshot(seconds)

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shape of the master for a parameter that is an image; others have no state."""
        return {MASTER: tuple(p.shape)} if self._masters.has_image(p) else {}

    def check_masters(
        self, step: int, saved: dict[torch.Tensor, Any], changed: list[TrainedWeight]
    ) -> None:
        """Check that a state has all masters, and the same step as weights that are masters.

        Parameters
        ----------
        step : int
            Step of the state.
        saved : dict
            The state of each parameter.
        changed : list of TrainedWeight
            Weights that other code has written to since the last step or the last state.

        Raises
        ------
        InvalidArgument
            A weight does not fit; the text names it.
        """
        self.check_between_steps("load_state_dict")
        loaded = {weight.name for weight in changed}
        if loaded and self._written.lags and not self._written.get().is_passing:
            raise InvalidArgument(
                f"load_state_dict: {changed[0].name} was changed while steps were written into it; "
                "load weights with model.load_state_dict(), which waits for the steps"
            )
        is_whole = self._flushed()
        for weight in self._of.weights:
            p = weight.parameter
            if not self._masters.has_image(p):
                is_of_step = is_whole and self.committed_steps == step
                if self._has_history and not is_of_step and weight.name not in loaded:
                    raise InvalidArgument(
                        f"load_state_dict: the state has step {step}, but {weight.name} has step "
                        f"{self.committed_steps}{'' if is_whole else ' or earlier'}; load "
                        f"the model's weights of step {step} first, or make a new optimizer of them"
                    )
            elif p not in saved:
                raise InvalidArgument(
                    f"load_state_dict: the state has no master of {weight.name}, expected one"
                )
            elif saved[p][MASTER].data_ptr() == self._masters.of(p).data_ptr():
                raise InvalidArgument(
                    f"load_state_dict: the master of {weight.name} is the optimizer's own tensor, "
                    "which later steps have changed; keep copy.deepcopy(opt.state_dict()) instead"
                )

    def _flushed(self) -> bool:
        """Bring all weights to the last step; return False if a lane has failed."""
        try:
            self.flush()
        except Error:
            return False
        return True

    def load(self, step: int, masters: dict[torch.Tensor, Any]) -> None:
        """Continue from masters of a step; masters that are parameters have that step already."""
        self._flushed()  # Otherwise pending writes would overwrite them.
        self._holding.clear()
        self._written.get().restart(step)
        self._has_history = True
        for p, values in masters.items():
            if MASTER in values:
                self._masters.of(p).copy_(values[MASTER])

    def close(self, theta: bool = True) -> None:
        """Leave theta in the parameters; after a failed lane, weights of mixed steps.

        Raises
        ------
        InvalidArgument
            A pass is under way; it continues.
        Error
            A lane failed; the engine is closed.
        """
        if not self._written.is_open:
            return
        self.check_between_steps("close")  # Checked before any waiting.
        try:
            self.flush()  # Also without theta, weights end up at one common step.
            super().close(theta)
        except Error:
            self._reader.close()
            self._base.close()
            self._written.close()
            raise
