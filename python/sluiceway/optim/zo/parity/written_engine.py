"""The engine of a run whose steps are written into the weights."""

from __future__ import annotations

import os

import torch

from sluiceway import _core
from sluiceway.errors import Error
from sluiceway.optim.zo.host.logged_engine import StreamingEngine, streaming_arguments
from sluiceway.optim.zo.tier import Training


class WrittenEngine(StreamingEngine):
    """Open until `close`.

    Parameters
    ----------
    training : Training

    Attributes
    ----------
    lags : bool
        Whether a pass has begun since `flush`: masters may be written to at any time.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training.owner)
        self.lags = False
        self._engine = _core.ZoParityEngine(
            threads=torch.get_num_threads(),
            wire=training.options.narrow_wire or "",
            **streaming_arguments(training),
        )
        trace = training.options.trace
        self._engine.enable_trace(trace is not None, os.fspath(trace or ""))

    def flush(self) -> None:
        """Let masters be of the last step; within a pass those that it does not stream are."""
        engine = self.get()
        if not engine.is_passing:
            try:
                engine.flush()
            except Error:
                self.lags = False  # A lane that has failed writes no more.
                raise
            self.lags = False
