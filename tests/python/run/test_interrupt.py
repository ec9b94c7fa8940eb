"""A first signal waits for what is in flight, a second one does not, and patience ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from sluiceway.base.interrupt import Interrupt

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def wait(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@SIGNALS
def test_what_never_ends_is_given_up(number):
    with Interrupt(patience=0.3) as interrupt:
        interrupt.defer()
        with interrupt.in_flight():
            os.kill(os.getpid(), number)
            assert interrupt.requested
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                wait(30)
            assert 0.2 < time.monotonic() - began < 10


@SIGNALS
def test_a_signal_that_came_before_counts_from_where_something_is_in_flight(number):
    with Interrupt(patience=0.1) as interrupt:
        interrupt.defer()
        os.kill(os.getpid(), number)
        wait(0.3)  # A save takes its time.
        with pytest.raises(KeyboardInterrupt), interrupt.in_flight():
            wait(30)


def test_what_ends_in_time_is_left_alone():
    with Interrupt(patience=0.2) as interrupt:
        interrupt.defer()
        with interrupt.in_flight():
            wait(0.1)  # From now on a second is not too long.
        with interrupt.in_flight():
            os.kill(os.getpid(), signal.SIGTERM)
            wait(0.4)
        wait(0.8)
    assert interrupt.requested


def test_what_waits_for_something_slow_is_given_up_when_that_has_come():
    comes = threading.Event()
    with Interrupt(patience=0.1) as interrupt:
        interrupt.defer()
        with interrupt.in_flight(lambda: not comes.is_set()):
            os.kill(os.getpid(), signal.SIGTERM)
            wait(0.5)
            comes.set()
            with pytest.raises(KeyboardInterrupt):
                wait(30)


STOPPED = """
import os, signal, time
from sluiceway.base.interrupt import Interrupt
with Interrupt(patience=4.0) as interrupt:
    interrupt.defer()
    with interrupt.in_flight():
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 5.5
        os.kill(os.getpid(), signal.SIGSTOP)
        while time.monotonic() < end:
            time.sleep(0.01)
    print("ended", flush=True)
"""


def test_time_in_which_the_process_is_suspended_does_not_count():
    child = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    time.sleep(5)
    child.send_signal(signal.SIGCONT)
    assert child.communicate(timeout=60)[0] == "ended\n"
    assert child.returncode == 0
