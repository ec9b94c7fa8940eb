"""Runs functions on threads of their own, each of which may stay on one processor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def side_thread(name: str, cpu: int | None = None) -> ThreadPoolExecutor:
    """Return a pool of one thread, on the processor `cpu` or on those of the caller.

    The process does not end before the thread, because ending one within torch's code would abort
    the process.
    """
    return ThreadPoolExecutor(1, name, _stay_on, (cpu,))


def run_aside(name: str, run: Callable[[], _T], cpu: int | None = None) -> Future[_T]:
    """Run a function on a thread of its own, which ends with it."""
    pool = side_thread(name, cpu)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return future


def _stay_on(cpu: int | None) -> None:
    if cpu is not None:
        with contextlib.suppress(OSError):  # The processor may be taken by now.
            os.sched_setaffinity(0, {cpu})
