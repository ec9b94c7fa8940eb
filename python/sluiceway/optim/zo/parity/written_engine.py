"""The compiled engine of a run whose steps are written into the weights."""

from __future__ import annotations

import os

import torch

from sluiceway import _core
from sluiceway.errors import Error
from sluiceway.optim.zo.host.logged_engine import StreamingEngine, streaming_arguments
from sluiceway.optim.zo.tier import Training


class WrittenEngine(StreamingEngine):
    """A compiled engine that writes steps into weights, open until `close`.

    Parameters
    ----------
    training : Training

    Attributes
    ----------
    lags : bool
        True if a pass has begun since `flush`, so that masters may be written at any time.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training.owner)
        self.lags = False
        self._engine = _core.ZoEngine(
            mode="write_back",
            threads=torch.get_num_threads(),
            wire=training.options.narrow_wire or "",
            **streaming_arguments(training),
        )
        trace = training.options.trace
        self._engine.enable_trace(trace is not None, os.fspath(trace or ""))

    def flush(self) -> None:
        """Bring masters to the last step; within a pass only those that it does not stream."""
        engine = self.get()
        if not engine.is_passing:
            try:
                engine.flush()
            except Error:
                self.lags = False  # A failed lane writes no more.
                raise
            self.lags = False
