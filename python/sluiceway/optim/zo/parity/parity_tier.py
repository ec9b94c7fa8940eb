"""Weights in host memory that each step is written into [MeZO, ZO2].

A weight that arrives for a pass is given what it lacks of the steps before, and goes back while the
forwards run. So its master is of the last step after `flush` alone, which whoever looks at weights
outside of a pass calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.zo.host.base_weights import BaseWeights
from sluiceway.optim.zo.host.host_tier import StreamedTier
from sluiceway.optim.zo.parity.master_base import MasterBase
from sluiceway.optim.zo.parity.master_weights import MasterWeights
from sluiceway.optim.zo.parity.weight_snapshot import WeightSnapshot
from sluiceway.optim.zo.parity.written_engine import WrittenEngine
from sluiceway.optim.zo.tier import Closure, Training
from sluiceway.optim.zo.weights import MASTER, TrainedWeight


class ParityTier(StreamedTier):
    """Streams masters, and keeps no log.

    Parameters
    ----------
    training : Training
        Its parameters are moved to the masters.
    state : dict
        The optimizer's: masters that are not parameters are there.

    Raises
    ------
    InvalidArgument
        A weight cannot have such a master.
    Exception
        Whatever it is, the model and the state are as they were.
    """

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        self._masters, self._written = MasterBase(training, state), WrittenEngine(training)
        self._number = {id(w.parameter): i for i, w in enumerate(training.weights)}
        self._has_history = False  # Else weights may be of any step, which a state then says.
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
        """Begin a step, on what the last one has made of weights that are not streamed."""
        self._base.forget()
        super().begin(closures)

    def _commit(self, g: list[float], rates: list[tuple[float, float]], non_finite: bool) -> None:
        self._has_history = True
        self._written.get().commit(g, rates)

    def set_gammas(self) -> None:
        """Decay is in the weights."""
        for group in self._of.param_groups:
            group["gamma"] = 1.0

    def flush(self) -> None:
        """Let every master be of the last step."""
        self._settle()
        self._written.flush()

    def snapshot(self, state: dict[str, Any]) -> WeightSnapshot:
        """Weights of the last step, with a state that is of it.

        Raises
        ------
        InvalidArgument
            A pass is under way, or another snapshot.
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
        """Nobody reads it any more."""
        if self._written.is_open:
            self._written.get().drop_snapshot()

    def _finish_snapshot(self, seconds: float | None) -> bool:
        if not self._written.is_open:
            return True
        with suppress(Error):  # The engine says it, too, and tells whoever reads.
            self._settle()
        return self._written.get().finish_snapshot(seconds)

    # ---- State ----

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Of a parameter that is an image, its master."""
        return {MASTER: tuple(p.shape)} if self._masters.has_image(p) else {}

    def check_masters(
        self, step: int, saved: dict[torch.Tensor, Any], changed: list[TrainedWeight]
    ) -> None:
        """Refuse a state that lacks a master, or that the weights which are masters are not of.

        Parameters
        ----------
        step : int
            Of the state.
        saved : dict
            By parameter.
        changed : list of TrainedWeight
            What others have written to since the last step, or the last state.

        Raises
        ------
        InvalidArgument
            It is named.
        """
        self.check_between_steps("load_state_dict")
        loaded = {weight.name for weight in changed}
        if loaded and self._written.lags and not self._written.get().is_passing:
            raise InvalidArgument(
                f"load_state_dict: {changed[0].name} was changed while steps were written into it, "
                "expected others to wait; call model.load_state_dict() before, which does"
            )
        is_whole = self._flushed()
        for weight in self._of.weights:
            p = weight.parameter
            if not self._masters.has_image(p):
                is_of_step = is_whole and self.committed_steps == step
                if self._has_history and not is_of_step and weight.name not in loaded:
                    raise InvalidArgument(
                        f"load_state_dict: is of step {step}, and {weight.name} of step "
                        f"{self.committed_steps}{'' if is_whole else ' or before'}, expected the "
                        f"same; load the model's weights of step {step} first, or make a new "
                        "optimizer of them"
                    )
            elif p not in saved:
                raise InvalidArgument(
                    f"load_state_dict: has no master of {weight.name}, expected one in its state"
                )
            elif saved[p][MASTER].data_ptr() == self._masters.of(p).data_ptr():
                raise InvalidArgument(
                    f"load_state_dict: the master of {weight.name} is the optimizer's own, which "
                    "steps are written into, expected what it was when it was saved; keep "
                    "copy.deepcopy(opt.state_dict())"
                )

    def _flushed(self) -> bool:
        """Whether weights are of one step: not after a lane has failed."""
        try:
            self.flush()
        except Error:
            return False
        return True

    def load(self, step: int, masters: dict[torch.Tensor, Any]) -> None:
        """Go on from masters of a step; those that are parameters are of it."""
        self._flushed()  # What was under way would be written over them.
        self._holding.clear()
        self._written.get().restart(step)
        self._has_history = True
        for p, values in masters.items():
            if MASTER in values:
                self._masters.of(p).copy_(values[MASTER])

    def close(self, theta: bool = True) -> None:
        """Leave theta in the parameters; after a failure whatever is there.

        Raises
        ------
        InvalidArgument
            A pass is under way, and goes on.
        Error
            A lane failed; it is closed.
        """
        if not self._written.is_open:
            return
        self.check_between_steps("close")  # Before anything is waited for.
        try:
            self.flush()  # Whoever does not ask for theta is left with weights of one step, too.
            super().close(theta)
        except Error:
            self._reader.close()
            self._base.close()
            self._written.close()
            raise
