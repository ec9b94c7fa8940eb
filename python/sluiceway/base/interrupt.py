"""Ctrl-C and SIGTERM: the step in flight is finished and saved, then the run ends with 130."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818 - it is no error.
    """The run was asked to stop, and what it has done is saved."""


class Interrupt:
    """Watches for SIGINT and SIGTERM while it is entered.

    Until `defer` a signal raises KeyboardInterrupt at once: nothing is in flight. Afterwards the
    first one only sets `requested`, and a second one raises.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferring = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def defer(self) -> None:
        """From now on steps are in flight: let a first signal only set `requested`."""
        self._deferring = True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        self.requested = True
        if again or not self._deferring:
            raise KeyboardInterrupt
