"""A late device whose driver has one lock and, now and then, waits until the lanes are idle.

A real driver takes a lock in every call. Some of its calls, such as the first launch of a kernel
or an allocation, moreover wait for an idle device while they hold that lock. `Driver` does the same
to every operation of torch and to every call of `DeviceOps`. The first time that an operation gets
arguments of some shape, it waits for the lanes of all engines.

`Driver` raises `DeadlockError`, with the threads and what each waits for, in two cases:

- A thread that Python did not start asks for the GIL while a call waits for the lanes. A driver
  call may keep the GIL, so such a lane would wait for the call and the call for the lane. Python
  numbers the states of its threads, so `Driver` sees this whenever it happens, on a machine of any
  speed. (Here torch gives a Python object to every tensor, even to one that C++ makes. A lane that
  frees such a tensor asks for the GIL, as it does under any other `TorchDispatchMode`.)
- The lanes are not idle after `limit_s`. No state proves that these threads will wait for ever, so
  the limit is far above the time that the lanes of a small model need.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import late_device
import pytest
import sluiceway as sw
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LIMIT_S = 20.0
_CALLS = ("compute", "stream", "follow", "release", "fetch", "mark")  # Those of `DeviceOps`.


class DeadlockError(AssertionError):
    """Threads wait for each other."""


class Driver:
    """The lock, the engines whose lanes a call waits for, and what each thread waits for.

    An engine allows one thread at a time. A call that waits starts a second thread, which waits for
    the lanes, and does nothing until that one has ended.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.waits_for_lanes = 0  # Calls that waited for lanes.
        self._limit_s = limit_s
        self._lock = threading.RLock()
        self._held_in = ""  # Thread and call.
        self._waits: dict[int, str] = {}
        self._engines: weakref.WeakSet[Any] = weakref.WeakSet()
        self._seen: set[object] = set()
        self._starting = threading.RLock()
        self._python_made = 0  # States of threads that Python started, and of `_foreign`.

    def watch(self, engine: Any) -> None:
        """Wait for the lanes of this engine too; it has `synchronize()`."""
        self._engines.add(engine)

    @contextmanager
    def call(self, name: str, first: object = None) -> Iterator[None]:
        """Hold the lock; before a call that nobody made with `first` yet, wait for the lanes."""
        me = f"{threading.current_thread().name} in {name}"
        with self._waiting(f"the driver's lock, for {name}"):
            # The holder reports what it waits for after `limit_s` and lets go.
            if not self._lock.acquire(timeout=2 * self._limit_s):
                self._report(f"{me} does not get the driver's lock, which {self._held_in} holds")
        outer, self._held_in = self._held_in, me
        try:
            if first is not None and first not in self._seen:
                self._wait_for_lanes(me)
                self._seen.add(first)
            yield
        finally:
            self._held_in = outer
            self._lock.release()

    def _wait_for_lanes(self, me: str) -> None:
        self.waits_for_lanes += 1
        foreign, failed = self._foreign(), []
        waiter = threading.Thread(
            target=self._synchronize, args=(failed,), name="waits for the lanes", daemon=True
        )
        with self._waiting(f"the lanes, and holds the driver's lock ({me})"):
            waiter.start()
            waiter.join(self._limit_s)
            if waiter.is_alive():
                self._report(
                    f"{me} holds the driver's lock, and the lanes that it waits for are not idle "
                    f"after {self._limit_s:g} s"
                )
            if self._foreign() != foreign:
                self._report(
                    f"{me} holds the driver's lock and waits for the lanes, and one of the threads "
                    f"{_foreign_names()} asked for the GIL, which a driver call may keep"
                )
        if failed:
            raise failed[0]

    def _synchronize(self, failed: list[BaseException]) -> None:
        try:
            for engine in list(self._engines):
                engine.synchronize()
        except sw.Error:  # Of a lane: every later call of the engine raises it too.
            pass
        except BaseException as error:
            failed.append(error)

    # ---- Threads ----

    def start_thread(self, start: Callable[[], None]) -> None:
        """Start one of Python's threads, which `_foreign` must not count."""
        with self._starting:
            self._python_made += 1
            start()

    def _foreign(self) -> int:
        """Count how often threads that Python did not start have asked for the GIL.

        Such a thread makes a thread state each time. Python numbers all states that it ever made,
        so the number of a new one tells how many there were.
        """
        api = ctypes.pythonapi
        api.PyInterpreterState_Get.restype = api.PyThreadState_New.restype = ctypes.c_void_p
        api.PyThreadState_GetID.restype = ctypes.c_uint64
        with self._starting:
            interpreter = ctypes.c_void_p(api.PyInterpreterState_Get())
            state = ctypes.c_void_p(api.PyThreadState_New(interpreter))
            number = api.PyThreadState_GetID(state)
            api.PyThreadState_Clear(state)
            api.PyThreadState_Delete(state)
            self._python_made += 1
            return number - self._python_made

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        ident = threading.get_ident()
        outer = self._waits.get(ident)
        self._waits[ident] = what
        try:
            yield
        finally:
            del self._waits[ident]
            if outer is not None:
                self._waits[ident] = outer

    def _report(self, what: str) -> None:
        frames, lines = sys._current_frames(), [f"deadlock: {what}"]
        for thread in threading.enumerate():
            waits = self._waits.get(thread.ident, "nothing that the driver knows")
            lines.append(f"{thread.name} waits for {waits}:")
            if thread.ident in frames:
                stack = traceback.format_stack(frames[thread.ident])
                lines += [line.rstrip() for line in stack[-8:]]
        lines.append(f"Threads that Python did not start: {_foreign_names()}")
        raise DeadlockError("\n".join(lines))


def _foreign_names() -> str:
    """Names of the threads that Python did not start; lanes are among them."""
    ours, names = {thread.native_id for thread in threading.enumerate()}, set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # The thread may end while we look.
            if int(task.name) not in ours:
                names.add((task / "comm").read_text().strip())
    return ", ".join(sorted(names))


def _looks_of(argument: Any) -> object:
    """Return what of an argument chooses a kernel or a size of memory."""
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.dtype
    return type(argument) if isinstance(argument, (float, torch.Generator)) else repr(argument)


class _Operations(TorchDispatchMode):
    """Makes every operation of torch, in the thread that enters this, a call of the driver."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = [_looks_of(leaf) for leaf in tree_leaves((args, kwargs))]
        with self._driver.call(str(func), (func, *leaves)):
            return func(*args, **kwargs)


def _ops_of(driver: Driver) -> type[late_device.LateOps]:
    """A device each of whose calls takes the lock."""

    def locked(name: str) -> Callable[..., Any]:
        plain = getattr(late_device.LateOps, name)

        @functools.wraps(plain)
        def call(ops: Any, *arguments: Any) -> Any:
            with driver.call(f"DeviceOps.{name}"):
                return plain(ops, *arguments)

        return call

    return type("DriverOps", (late_device.LateOps,), {name: locked(name) for name in _CALLS})


@contextmanager
def use(monkeypatch: pytest.MonkeyPatch, limit_s: float = LIMIT_S) -> Iterator[Driver]:
    """Give a driver to new optimizers, and to torch in this thread and in new ones.

    A thread whose class has a `run()` of its own calls torch without it.
    """
    driver = Driver(limit_s)
    late_device.use(monkeypatch, _ops_of(driver))
    start, run = threading.Thread.start, threading.Thread.run

    def watched(make_engine: Callable[..., Any]) -> Callable[..., Any]:
        def make(opt: Any, model: torch.nn.Module) -> Any:
            engine = make_engine(opt, model)
            driver.watch(getattr(engine, "_engine", engine))  # Behind a HeldEngine is one more.
            return engine

        return make

    def run_with_driver(thread: threading.Thread) -> None:
        with _Operations(driver):
            run(thread)

    for kind in (sw.SubspaceAdamW, sw.OffloadAdamW):
        monkeypatch.setattr(kind, "_make_engine", watched(kind._make_engine))
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: driver.start_thread(lambda: start(thread))
    )
    monkeypatch.setattr(threading.Thread, "run", run_with_driver)
    with _Operations(driver):
        yield driver
