"""Weights of any step since the base, computed from the base and the log of a save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.weight_stream import saved_buffers, write_weights
from sluiceway.optim.common.state import STATE_KEY
from sluiceway.optim.zo.optimizer import ZoSgd


class LoggedWeights:
    """Weights that are computed one by one as they are written; a `CopiedWeights`.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers.
    optimizer : ZoSgd
        An optimizer of tier host or disk in mode log, whose weights are the base. `close` closes
        it.
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
        """Move to `step`, one of the steps that led to the optimizer's saved `state`.

        Raises
        ------
        InvalidArgument
            `step` is earlier than the base or later than `state`.
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
        """Write one file, like the one in a save of tier disk."""
        write_weights(self._model, to, self._optimizer.theta, dtype, advance)

    def close(self) -> None:
        """Close the optimizer with its store and log."""
        self._optimizer.close(theta=False)
