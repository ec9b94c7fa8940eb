"""Ctrl-C that waits until what cannot be left half done is through."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Undisturbed:
    """While it is entered a first signal is only noted; a second one is handled at once.

    What was noted is handled by `handle_pending()`, or at the end of the block, as it would have
    been: by whatever handler of Python's there was, which may raise KeyboardInterrupt. Signals are
    handled in the main thread alone; in others the block does nothing.

    Attributes
    ----------
    wake : callable or None
        Called when a signal was noted, inside of its handler: for whoever waits.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None
        self._before: dict[int, Callable[..., Any]] = {}
        self._noted: tuple[int, FrameType | None] | None = None
        self._has_come = False

    def __enter__(self) -> Undisturbed:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = handler
                    signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for number in reversed(list(self._before)):  # SIGINT last: from then on it may raise.
                signal.signal(number, self._before[number])
        finally:
            self.handle_pending()

    def handle_pending(self) -> None:
        """Handle what was noted."""
        noted, self._noted = self._noted, None
        if noted is not None:
            self._before[noted[0]](*noted)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._has_come:
            self._before[number](number, frame)
            return
        self._has_come, self._noted = True, (number, frame)
        if self.wake is not None:
            self.wake()
