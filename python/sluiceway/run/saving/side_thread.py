"""Runs a function on a thread of its own, and raises its error in the thread that waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable


class SideThread:
    """A thread that starts at once. The process cannot end before it, so stop it first.

    It is no daemon thread, because ending one within torch's code would abort the process.

    Parameters
    ----------
    name : str
        Name of the thread.
    run : callable
    cpu : int or None
        Processor that the thread runs on; None: the processors of the thread that creates it.
    """

    def __init__(self, name: str, run: Callable[[], None], cpu: int | None = None) -> None:
        self._error: BaseException | None = None
        self._cpu = cpu
        self._thread = threading.Thread(target=self._run, args=(run,), name=name)
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            if self._cpu is not None:
                with contextlib.suppress(OSError):  # The processor may be taken by now.
                    os.sched_setaffinity(0, {self._cpu})
            run()
        except BaseException as error:  # Raised where it is waited for.
            self._error = error

    @property
    def is_running(self) -> bool:
        """True until the thread has ended."""
        return self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds`; return True if the thread has ended.

        Raises
        ------
        BaseException
            The error that the function has raised.
        """
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True
