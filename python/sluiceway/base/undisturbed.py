"""Delays Ctrl-C until the end of work that must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from sluiceway.base.interrupt import SignalHandler


class Undisturbed(SignalHandler):
    """Context that notes a first Ctrl-C for later, and handles a second one at once.

    `handle_pending()`, or the end of the block, passes the noted signal to the Python handler that
    was installed before, which may raise KeyboardInterrupt. Python handles signals in the main
    thread alone; in other threads the block does nothing.

    Attributes
    ----------
    wake : callable or None
        Called inside of the signal handler when a signal is noted, to wake a waiting thread.
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
        """Handle the signal that was noted, if there is one."""
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
