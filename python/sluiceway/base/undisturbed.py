"""Ctrl-C that waits until what cannot be left half done is through."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from sluiceway.base.interrupt import SignalHandler


class Undisturbed(SignalHandler):
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
        super().__init__()
        self.wake: Callable[[], None] | None = None
        self._noted: tuple[int, FrameType | None] | None = None
        self._has_come = False

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        finally:
            self.handle_pending()

    def _signals(self) -> Sequence[int]:
        if threading.current_thread() is not threading.main_thread():
            return ()
        return [number for number in super()._signals() if callable(signal.getsignal(number))]

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
