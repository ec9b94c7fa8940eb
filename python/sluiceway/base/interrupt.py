"""Handles Ctrl-C and SIGTERM: the run finishes its step, saves, and exits with code 130.

If the step takes too long, for example over a stalled link, the run abandons it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

_WAITS = 20


class Interrupted(Exception):  # noqa: N818 - it is no error.
    """The run was asked to stop, and its work is saved.

    The text is the run's folder.
    """


class SignalHandler(ABC):
    """Context that passes SIGINT and SIGTERM to `_arrived` instead of the previous handlers."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals():
            self._before[number] = signal.getsignal(number)  # First: `_arrived` may look for it.
            signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in reversed(list(self._before)):  # SIGINT last: its old handler may raise.
            signal.signal(number, self._before[number])

    def _signals(self) -> Sequence[int]:
        return signal.SIGINT, signal.SIGTERM

    @abstractmethod
    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal."""


class Interrupt(SignalHandler):
    """Context that watches for SIGINT and SIGTERM while it is entered.

    Before `defer` is called, nothing is in flight and a signal raises KeyboardInterrupt at once.
    Afterwards the first signal only sets `requested`; a second one raises. The work inside of
    `in_flight` then has `patience` seconds to finish, or ten times the longest time that such work
    has taken, whichever is more. After that the first signal is sent again.
    """

    def __init__(self, patience: float = 20.0) -> None:
        super().__init__()
        self.requested = False
        self._patience = patience
        self._in_flight = False
        self._last = signal.SIGINT
        self._over = threading.Event()  # What was in flight has ended.
        self._deferring = False
        self._holds: Callable[[], bool] = lambda: False

    def defer(self) -> None:
        """Let a first signal only set `requested`: from now on steps are in flight."""
        self._deferring = True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        self.requested = True
        if again or not self._deferring:
            raise KeyboardInterrupt
        self._last = number
        if self._in_flight:
            self._lose_patience()

    @contextlib.contextmanager
    def in_flight(self, holds: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Mark the block as work that a first signal waits for, but not for ever.

        Parameters
        ----------
        holds : callable
            Returns whether the work is waiting for something of unknown duration, such as a slow
            disk. If so, the time limit is extended.
        """
        began = time.monotonic()
        self._in_flight, self._holds, self._over = True, holds, threading.Event()
        if self.requested:
            self._lose_patience()
        try:
            yield
        finally:
            self._in_flight = False
            self._over.set()
        self._patience = max(self._patience, 10 * (time.monotonic() - began))

    def _lose_patience(self) -> None:
        main = threading.main_thread().ident
        arguments = (main, self._over, self._patience)
        threading.Thread(target=self._out_of_patience, args=arguments, daemon=True).start()

    def _out_of_patience(self, main: int | None, over: threading.Event, patience: float) -> None:
        while True:
            # Many short waits: of the time in which the process is suspended, one of them counts.
            for _ in range(_WAITS):
                if over.wait(patience / _WAITS):
                    return
            if not self._holds():
                return signal.pthread_kill(main, self._last)
