"""Records the times of the training loop's activities, in trace rows beside the engine's rows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.

from sluiceway import _core
from sluiceway.errors import IoError

_MOST = 20000  # Ranges; a long run keeps its beginning.
_ROW = "loop"


class Timeline:
    """Named time ranges of the training loop's thread.

    Parameters
    ----------
    path : Path or None
        File that `write` writes; None: no ranges are kept.
    of_engine : Trace, optional
        A trace that the engine writes to `path` itself. It then gets the ranges as they happen.
    """

    def __init__(self, path: Path | None, of_engine: _core.Trace | None = None) -> None:
        hands_over = path is not None and of_engine is not None
        self._path = None if hands_over else path
        self._trace = _core.Trace(max_ranges=0 if self._path is None else _MOST)
        trace = of_engine if hands_over else self._trace
        self._add: Callable[[str, str, float, float], None] = trace.add_range

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        began = _core.now_us()
        yield
        self.add(_ROW, name, began, _core.now_us())

    def add(self, row: str, name: str, began_us: float, ended_us: float) -> None:
        """Record a range in any row."""
        self._add(row, name, began_us, ended_us)

    def write(self) -> None:
        """Write the kept ranges.

        Raises
        ------
        sluiceway.errors.IoError
            Writing failed.
        """
        if self._path is None:
            return
        try:
            self._trace.write_json(str(self._path))
        except IoError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise IoError(
                f"{self._path}: the trace cannot be written, {reason}; the run is saved",
                error.errno,
                str(self._path),
            ) from None
