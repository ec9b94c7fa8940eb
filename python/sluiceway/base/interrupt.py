"""Ctrl-C and SIGTERM: the step in flight is finished and saved, then the run ends with 130.

A step that does not end, over a link that hardly moves, is given up after a while.
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
    """The run was asked to stop, and what it has done is saved."""


class SignalHandler(ABC):
    """Handles SIGINT and SIGTERM by `_arrived` while it is entered, in place of whatever did."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals():
            self._before[number] = signal.getsignal(number)  # Before `_arrived` may look for it.
            signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in reversed(list(self._before)):  # SIGINT last: from then on it may raise.
            signal.signal(number, self._before[number])

    def _signals(self) -> Sequence[int]:
        return signal.SIGINT, signal.SIGTERM

    @abstractmethod
    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""


class Interrupt(SignalHandler):
    """Watches for SIGINT and SIGTERM while it is entered.

    Until `defer` a signal raises KeyboardInterrupt at once: nothing is in flight. Afterwards the
    first one only sets `requested`, and a second one raises. What is `in_flight` then has
    `patience` seconds, and ten times as long as it ever took, until the first one is sent again.
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
        """From now on steps are in flight: let a first signal only set `requested`."""
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
        """What a first signal waits for, but not for ever.

        Parameters
        ----------
        holds : callable
            Whether that waits for something which may take any time, as a slow disk does.
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
