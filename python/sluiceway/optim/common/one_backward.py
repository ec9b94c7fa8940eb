"""The backward whose gradients are being gathered: its thread, its end and its failure.

Autograd runs a backward on the CPU in the thread that called it. Meanwhile forwards of other
threads do not disturb it, and backwards of other threads raise InvalidArgument.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common import torch_private


class _HeldByAutograd:
    """Callback at the end of a backward; autograd drops it uncalled if the backward raises."""

    own: weakref.ref[_HeldByAutograd]

    def __init__(self, end: Callable[[weakref.ref[_HeldByAutograd], bool], None]) -> None:
        self._end = end

    def __call__(self) -> None:
        self._end(self.own, False)


class OneBackward:
    """Allows one backward at a time; errors name `owner`, the optimizer."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._held: weakref.ref[_HeldByAutograd] | None = None
        self._thread = 0
        self._reserved = 0  # The thread that has reserved it, or 0.
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._interruption: KeyboardInterrupt | None = None  # Caught where it could not be raised.

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def runs_here(self) -> bool:
        """Return whether the backward is open in this thread, and `open()` has nothing to do."""
        mine = self._held is not None and self._thread == threading.get_ident()
        return mine and self._interruption is None

    def turn(self) -> AbstractContextManager[object]:
        """Lock the gathered gradients for one thread at a time.

        A forked child has one thread and does not lock, as its copy of the lock may stay locked.
        """
        return self._lock if os.getpid() == self._process else nullcontext()

    def elsewhere(self) -> bool:
        """Return whether another thread runs or has reserved the backward."""
        me = threading.get_ident()
        return (self.is_open and self._thread != me) or self._reserved not in (0, me)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve backwards for this thread inside the block."""
        with self.turn():
            self.refuse_elsewhere("a calibration")
            self._reserved = threading.get_ident()
        try:
            yield
        finally:
            self._reserved = 0

    def refuse_elsewhere(self, what: str) -> None:
        """Raise InvalidArgument if another thread runs a backward while this one calls `what`.

        Raises the KeyboardInterrupt of a Ctrl-C that came in the cleanup of a failed backward.
        """
        if self._interruption and threading.current_thread() is threading.main_thread():
            interruption, self._interruption = self._interruption, None
            raise interruption
        if self.elsewhere():
            raise InvalidArgument(
                f"{self._owner}: {what} is called in {threading.current_thread().name} while "
                "backward() runs in another thread; hold a lock around both, so that they run one "
                "after the other"
            )

    def open(self, ended: Callable[[bool], None]) -> bool:
        """Open a backward if this gradient is its first; returns whether it is.

        When it has ended, `ended` is called with whether it raised; `forget()` cancels that. A
        backward that another thread runs raises InvalidArgument.
        """
        if self.runs_here():
            return False
        with self.turn():
            self.refuse_elsewhere("backward()")
            if self.is_open:
                return False
            self._thread = threading.get_ident()

            def end(own: weakref.ref[_HeldByAutograd], raised: bool = True) -> None:
                if self._held is own:
                    try:
                        ended(raised)
                    except KeyboardInterrupt as interruption:
                        if not raised:
                            raise
                        self._interruption = interruption  # A finaliser cannot raise it.
                    finally:
                        self._held = None

            # Called when this backward ends. Reentrant checkpointing calls it once per segment, and
            # the next segment opens a backward again.
            end = torch.compiler.disable(end)
            held = _HeldByAutograd(end)
            self._held = held.own = weakref.ref(held, end)
            torch_private.when_backward_ends(held)
            return True

    def forget(self) -> None:
        """Let the next gradient open another backward although this one has not ended."""
        self._held = None
