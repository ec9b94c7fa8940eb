"""The backward that gathers now: which thread runs it, and that it ends, also where it raises.

Autograd runs a backward on the CPU in the thread that called it. Forwards of other threads leave it
alone, backwards of other threads are refused while it lasts.
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
    """Called when a backward ends; gone before it was called if the backward raised."""

    own: weakref.ref[_HeldByAutograd]

    def __init__(self, end: Callable[[weakref.ref[_HeldByAutograd], bool], None]) -> None:
        self._end = end

    def __call__(self) -> None:
        self._end(self.own, False)


class OneBackward:
    """At most one backward at a time.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._held: weakref.ref[_HeldByAutograd] | None = None
        self._thread = 0
        self._reserved = 0  # By a thread; 0: by none.
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._interruption: KeyboardInterrupt | None = None  # Came where it could not be raised.

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def turn(self) -> AbstractContextManager[object]:
        """Let one thread at a time look at what was gathered.

        A forked child has one thread, and a copy of the lock that nobody may ever release.
        """
        return self._lock if os.getpid() == self._process else nullcontext()

    def elsewhere(self) -> bool:
        """Return whether another thread runs it."""
        me = threading.get_ident()
        return (self.is_open and self._thread != me) or self._reserved not in (0, me)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Only this thread has backwards meanwhile."""
        with self.turn():
            self.refuse_elsewhere("a calibration")
            self._reserved = threading.get_ident()
        try:
            yield
        finally:
            self._reserved = 0

    def refuse_elsewhere(self, what: str) -> None:
        """Raise where `what` is called while another thread runs it.

        Raises
        ------
        InvalidArgument
        KeyboardInterrupt
            Ctrl-C came while a backward that had raised was being ended.
        """
        if self._interruption and threading.current_thread() is threading.main_thread():
            interruption, self._interruption = self._interruption, None
            raise interruption
        if self.elsewhere():
            raise InvalidArgument(
                f"{self._owner}: {what} is called in {threading.current_thread().name} while "
                "backward() runs in another thread, expected one after the other; hold a lock "
                "around both"
            )

    def open(self, ended: Callable[[bool], None]) -> bool:
        """A gradient is there; whether it is the first of its backward.

        Parameters
        ----------
        ended : callable
            Told when a backward that was opened has ended, and whether it raised, unless it was
            forgotten.

        Raises
        ------
        InvalidArgument
            A backward of another thread is under way.
        """
        mine = self._held is not None and self._thread == threading.get_ident()
        if mine and self._interruption is None:  # For all gradients but the first.
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
                        self._interruption = interruption  # A finaliser's caller hears nothing.
                    finally:
                        self._held = None

            # Called when this backward ends; once per segment under reentrant checkpointing, which
            # then opens again.
            end = torch.compiler.disable(end)
            held = _HeldByAutograd(end)
            self._held = held.own = weakref.ref(held, end)
            torch_private.when_backward_ends(held)
            return True

    def forget(self) -> None:
        """The next gradient opens another one, though this has not ended."""
        self._held = None
