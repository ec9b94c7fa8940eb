"""Runs functions in threads that meet wherever they enter a unit of a model.

The threads are the forward passes of one measurement: the same model with different weights or
inputs. Exactly one of them runs at any time, so they share modules and random generators without a
race. A forward pass runs until it reaches a unit or returns; then the next one runs. When all have
reached the same unit, the first one enters it.

All forward passes must reach the same units. If one returns or reaches another unit while others
wait, the run ends with an error instead of a deadlock.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.compilation import uncompiled


class _Ended(BaseException):
    """Unwinds a forward pass whose run has failed elsewhere; no `except Exception` stops it."""


@dataclass
class _Running:
    name: str
    go: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None
    at: str | None = None  # The unit that the forward pass has reached.
    done: bool = False
    result: Any = None
    error: BaseException | None = None

    def place(self) -> str:
        return "the end of the closure" if self.done else str(self.at)


class LockStep:
    """One run of all forward passes.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    names : sequence of str
        One name per forward pass.
    resume, pause : callable
        Called with the number of the forward pass whose turn begins or has ended, while none runs.
    """

    def __init__(
        self, owner: str, names: Sequence[str], resume: Callable[[int], None],
        pause: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._owner, self._resume, self._pause = owner, resume, pause
        self._forwards = [_Running(name) for name in names]
        # Items: the number of one that has reached a unit or returned; None after a signal. This is
        # written in C, so a signal handler may put into it even while another thread does.
        self._stopped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failed = False
        self._running = 0

    @property
    def running(self) -> int:
        """Number of the forward pass whose turn it is.

        Raises
        ------
        InvalidArgument
            The calling thread is not a forward pass: another thread runs a unit.
        """
        if self._failed:
            raise _Ended
        forward = self._forwards[self._running]
        if threading.current_thread() is not forward.thread:
            raise InvalidArgument(
                f"{self._owner}.step: a forward runs in thread "
                f"{threading.current_thread().name}, expected the closure's own; call the "
                "model without DataParallel or threads of your own"
            )
        return self._running

    def meet(self, unit: str) -> None:
        """Wait, in the thread of a forward pass that has reached `unit`, until it may enter."""
        forward = self._forwards[self.running]
        forward.at = unit
        self._stopped.put(self._running)
        forward.go.get()
        if self._failed:
            raise _Ended
        forward.at = None

    def run(self, functions: Sequence[Callable[[], Any]], quiet: Undisturbed) -> list[Any]:
        """Call one function in each forward pass.

        Parameters
        ----------
        functions : sequence of callable
        quiet : Undisturbed
            Entered by the caller, so that a signal ends the run only between two turns.

        Returns
        -------
        list
            The result of each forward pass. All threads have ended.

        Raises
        ------
        InvalidArgument
            The forward passes did not run the same units.
        BaseException
            Raised by a forward pass, or by an interrupt of this thread. All threads have ended.
        """
        around = _thread_state()
        for forward, function in zip(self._forwards, functions, strict=True):
            forward.thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._body, forward, function, around),
                name=f"zo {forward.name}",
                daemon=True,  # A thread left behind by a second Ctrl-C must not keep Python alive.
            )
        quiet.wake = lambda: self._stopped.put(None)
        with uncompiled():
            try:
                while not all(forward.done for forward in self._forwards):
                    for number in range(len(self._forwards)):
                        self._turn(number, quiet)
                    self._check_meeting()
            except BaseException:
                self._end_all()
                raise
        for forward in self._forwards:
            forward.thread.join()
        return [forward.result for forward in self._forwards]

    def _turn(self, number: int, quiet: Undisturbed) -> None:
        forward = self._forwards[number]
        self._running = number
        self._resume(number)
        if forward.thread.ident is None:
            forward.thread.start()
        else:
            forward.go.put(None)
        while self._stopped.get() is None:
            quiet.handle_pending()
        self._pause(number)
        if forward.error is not None:
            raise forward.error

    def _body(
        self, forward: _Running, function: Callable[[], Any], around: Callable[[], Any]
    ) -> None:
        try:
            with around():
                forward.result = function()
        except _Ended:
            pass
        except BaseException as error:
            forward.error = error
        forward.done = True
        self._stopped.put(self._running)

    def _check_meeting(self) -> None:
        first = self._forwards[0]
        for forward in self._forwards[1:]:
            if (forward.done, forward.at) != (first.done, first.at):
                raise InvalidArgument(
                    f"{self._owner}.step: forward pass {first.name} is at {first.place()} while "
                    f"forward pass {forward.name} is at {forward.place()}, expected the same "
                    "blocks or layers in the same order; do not choose layers by values that "
                    "depend on the weights"
                )

    def _end_all(self) -> None:
        """End the threads that have begun; each must unwind, since it may hold another's lock."""
        self._failed = True
        begun = [
            forward
            for forward in self._forwards
            if forward.thread is not None and forward.thread.ident
        ]
        for forward in begun:
            forward.go.put(None)
        for forward in begun:
            forward.thread.join()


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
