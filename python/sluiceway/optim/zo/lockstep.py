"""Runs functions in threads that meet wherever they enter a unit of a model.

The threads are the halves of one measurement: the same forward with different weights or inputs.
Exactly one of them runs at any time, so they share modules and random generators without a race.
A half runs until it reaches a unit or returns; then the next one runs. When all halves have reached
the same unit, the first one enters it.

All halves must reach the same units. If one returns or reaches another unit while others wait, the
run ends with an error instead of a deadlock.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.compilation import uncompiled


class Turns(Protocol):
    """Callbacks between turns of halves; always called while no half runs."""

    def resume(self, half: int) -> None:
        """Prepare the turn of `half`, which is about to run."""

    def pause(self, half: int) -> None:
        """Finish the turn of `half`, which has stopped; `resume` of another half may follow."""


class _Ended(BaseException):
    """Unwinds a half whose run has failed elsewhere; no `except Exception` stops it."""


@dataclass
class _Half:
    name: str
    go: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None
    at: str | None = None  # The unit that the half has reached.
    done: bool = False
    result: Any = None
    error: BaseException | None = None

    def place(self) -> str:
        return "the end of the closure" if self.done else str(self.at)


class LockStep:
    """One run of all halves.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    names : sequence of str
        One name per half.
    turns : Turns
        Called when another half runs.
    """

    def __init__(self, owner: str, names: Sequence[str], turns: Turns) -> None:
        self._owner, self._turns = owner, turns
        self._halves = [_Half(name) for name in names]
        # Items: a half that has reached a unit or returned; None after a signal. This queue is
        # written in C, so a signal handler may put into it even while another thread does.
        self._stopped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failed = False
        self._running = 0

    @property
    def running(self) -> int:
        """Number of the half whose turn it is.

        Raises
        ------
        InvalidArgument
            The calling thread is not a half: another thread runs a unit.
        """
        if self._failed:
            raise _Ended
        half = self._halves[self._running]
        if threading.current_thread() is not half.thread:
            raise InvalidArgument(
                f"{self._owner}.step: a forward runs in thread "
                f"{threading.current_thread().name}, expected the closure's own; call the "
                "model without DataParallel or threads of your own"
            )
        return self._running

    def meet(self, unit: str) -> None:
        """Wait, in the thread of a half that has reached `unit`, until the half may enter."""
        half = self._halves[self.running]
        half.at = unit
        self._stopped.put(self._running)
        half.go.get()
        if self._failed:
            raise _Ended
        half.at = None

    def run(self, functions: Sequence[Callable[[], Any]], quiet: Undisturbed) -> list[Any]:
        """Call one function in each half.

        Parameters
        ----------
        functions : sequence of callable
        quiet : Undisturbed
            Entered by the caller, so that a signal ends the run only between turns of halves.

        Returns
        -------
        list
            The result of each half.

        Raises
        ------
        InvalidArgument
            The halves did not run the same units.
        BaseException
            Raised by a half, or by an interrupt of this thread. All halves have ended.
        """
        around = _thread_state()
        for half, function in zip(self._halves, functions, strict=True):
            half.thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._body, half, function, around),
                name=f"zo {half.name}",
                daemon=True,  # A thread left behind by a second Ctrl-C must not keep Python alive.
            )
        quiet.wake = lambda: self._stopped.put(None)
        with uncompiled():
            try:
                while not all(half.done for half in self._halves):
                    for number in range(len(self._halves)):
                        self._turn(number, quiet)
                    self._check_meeting()
            except BaseException:
                self._end_all()
                raise
        return [half.result for half in self._halves]

    def _turn(self, number: int, quiet: Undisturbed) -> None:
        half = self._halves[number]
        self._running = number
        self._turns.resume(number)
        if half.thread.ident is None:
            half.thread.start()
        else:
            half.go.put(None)
        while self._stopped.get() is None:
            quiet.handle_pending()
        self._turns.pause(number)
        if half.error is not None:
            raise half.error

    def _body(self, half: _Half, function: Callable[[], Any], around: Callable[[], Any]) -> None:
        try:
            with around():
                half.result = function()
        except _Ended:
            pass
        except BaseException as error:
            half.error = error
        half.done = True
        self._stopped.put(self._running)

    def _check_meeting(self) -> None:
        first = self._halves[0]
        for half in self._halves[1:]:
            if (half.done, half.at) != (first.done, first.at):
                raise InvalidArgument(
                    f"{self._owner}.step: half {first.name} is at {first.place()} while half "
                    f"{half.name} is at {half.place()}, expected the same blocks or layers in the "
                    "same order; do not choose layers by values that depend on the weights"
                )

    def _end_all(self) -> None:
        """End the halves that have begun; each must unwind, since it may hold another's lock."""
        self._failed = True
        begun = [half for half in self._halves if half.thread is not None and half.thread.ident]
        for half in begun:
            half.go.put(None)
        for half in begun:
            half.thread.join()


def _thread_state() -> Callable[[], Any]:
    """Capture torch's thread-local settings, as a context that another thread can enter."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.amp.is_autocast_available(kind)]
    casts = [(k, torch.get_autocast_dtype(k), torch.is_autocast_enabled(k)) for k in kinds]
    cache = torch.is_autocast_cache_enabled()
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    @contextlib.contextmanager
    def enter() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for kind, dtype, enabled in casts:
                if enabled:
                    stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cache))
            if stream is not None:
                stack.enter_context(torch.cuda.stream(stream))
            yield

    return enter
