"""Runs functions in threads that meet wherever they enter a unit of a model.

The threads are halves of one measurement: the same forward, with weights or inputs that differ.
Exactly one of them runs at any time, so that they share modules and random generators without a
race. It runs until it stands before a unit, or is through; then it is the turn of the next. When
all of them stand before the same unit, the first one enters it.

Where halves meet they have to agree: one that is through, or stands before another unit, while
others wait, ends the run with an error in place of a deadlock.
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
    """What happens between turns of halves; always called while no half runs."""

    def resume(self, half: int) -> None:
        """`half` is about to run."""

    def pause(self, half: int) -> None:
        """`half` has stopped running; `resume` of another one may follow."""


class _Ended(BaseException):
    """Unwinds a half whose run has failed elsewhere; no `except Exception` stops it."""


@dataclass
class _Half:
    name: str
    go: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None
    at: str | None = None  # The unit that it stands before.
    done: bool = False
    result: Any = None
    error: BaseException | None = None

    def place(self) -> str:
        return "the end of the closure" if self.done else str(self.at)


class LockStep:
    """One run of halves.

    Parameters
    ----------
    owner : str
        Whose error it is.
    names : sequence of str
        One a half.
    turns : Turns
        What is exchanged when another half runs.
    """

    def __init__(self, owner: str, names: Sequence[str], turns: Turns) -> None:
        self._owner, self._turns = owner, turns
        self._halves = [_Half(name) for name in names]
        # A half stands before a unit, or is through; None: a signal has come. A queue in C, which
        # a signal's handler may put into, whoever is putting.
        self._stopped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failed = False
        self._running = 0

    @property
    def running(self) -> int:
        """Number of the half whose turn it is.

        Raises
        ------
        InvalidArgument
            The caller is no half: another thread runs a unit.
        """
        if self._failed:
            raise _Ended
        half = self._halves[self._running]
        if threading.current_thread() is not half.thread:
            raise InvalidArgument(
                f"{self._owner}.step: a forward runs in thread "
                f"{threading.current_thread().name}, expected the closure's own; call the "
                "model without DataParallel or own threads"
            )
        return self._running

    def meet(self, unit: str) -> None:
        """Called by a half that stands before `unit`: returns when it may enter."""
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
            Entered by the caller: a signal ends the run between turns of halves, and nowhere else.

        Returns
        -------
        list
            What each half returned.

        Raises
        ------
        InvalidArgument
            The halves did not run the same units.
        BaseException
            What a half raised, or what interrupted this thread; all halves have ended.
        """
        around = _thread_state()
        for half, function in zip(self._halves, functions, strict=True):
            half.thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._body, half, function, around),
                name=f"zo {half.name}",
                daemon=True,  # One that a second Ctrl-C left behind does not keep Python alive.
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
                    f"{self._owner}.step: half {first.name} stands at {first.place()} while half "
                    f"{half.name} stands at {half.place()}, expected the same blocks or layers in "
                    "the same order; let no value that depends on the weights choose what runs"
                )

    def _end_all(self) -> None:
        """Let halves that have begun run into their end; one may hold a lock of another."""
        self._failed = True
        begun = [half for half in self._halves if half.thread is not None and half.thread.ident]
        for half in begun:
            half.go.put(None)
        for half in begun:
            half.thread.join()


def _thread_state() -> Callable[[], Any]:
    """What torch keeps by thread and a closure may rely on, for another thread to enter."""
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
