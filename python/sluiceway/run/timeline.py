"""What the training loop itself did when: rows of its own beside those of the engine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.errors import IoError

if TYPE_CHECKING:
    from sluiceway.engines.protocol import Recorder

_MOST = 20000  # Ranges; a long run keeps its beginning.
_ROW = "loop"


class Timeline:
    """Named ranges of the loop's thread.

    An engine with a trace of its own gets them as they happen and writes the file. For others they
    are kept here, and `write` makes Chrome/Perfetto JSON of them.

    Parameters
    ----------
    path : Path or None
        Where `write` puts them; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._ranges: list[tuple[str, float, float]] = []
        self._clock: Callable[[], float] = lambda: 1e6 * time.perf_counter()
        self._add: Callable[[str, float, float], None] = self._keep

    def hand_over(self, recorder: Recorder | None) -> None:
        """Let the engine record, if it has a trace of its own."""
        if self._path is None or recorder is None:
            return
        from sluiceway import _core  # Needs torch, which whoever has such an engine has loaded.

        self._clock = _core.now_us
        self._add = lambda name, began, ended: recorder.add_trace_range(_ROW, name, began, ended)
        self._path = None

    def _keep(self, name: str, began: float, ended: float) -> None:
        if self._path is not None and len(self._ranges) < _MOST:
            self._ranges.append((name, began, ended))

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        began = self._clock()
        yield
        self._add(name, began, self._clock())

    def write(self) -> None:
        """Write what was kept.

        Raises
        ------
        sluiceway.errors.IoError
            The disk refused.
        """
        if self._path is None:
            return
        zero = min((began for _, began, _ in self._ranges), default=0.0)
        row = {"pid": 1, "tid": 1}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", **row, "args": {"name": _ROW}}
        ]
        for name, began, ended in self._ranges:
            times = {"ts": round(began - zero, 1), "dur": round(ended - began, 1)}
            events.append({"ph": "X", "name": name, **row, **times})
        try:
            self._path.write_text(json.dumps({"traceEvents": events}) + "\n")
        except OSError as error:
            raise IoError(
                f"{self._path}: the trace cannot be written, {error.strerror}; the run is saved",
                error.errno,
                str(self._path),
            ) from None
