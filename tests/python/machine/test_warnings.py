"""Warnings of the runtime are Python's, from whichever thread they come, until the very end."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.
from sluiceway import _core


def heard_of(say):
    """Texts of the RuntimeWarnings that `say` brings to this thread."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        say()
        time.sleep(0.001)  # As every call that waits for something does, it lets the GIL go.
    assert {warning.category for warning in heard} <= {RuntimeWarning}
    return [str(warning.message) for warning in heard]


def test_a_warning_of_this_thread_is_heard():
    assert heard_of(lambda: _core.warn("copies are slower")) == ["copies are slower"]


def test_warnings_of_other_threads_are_heard_here_all_of_them():
    def say():
        threads = [
            threading.Thread(target=lambda i=i: [_core.warn(f"{i} {k}") for k in range(20)])
            for i in range(5)  # More at once than the interpreter's list of calls has room for.
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(heard_of(say)) == sorted(f"{i} {k}" for i in range(5) for k in range(20))


def test_where_warnings_are_errors_it_is_raised_and_the_next_one_is_heard():
    def say_first():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _core.warn("first")
            time.sleep(0.001)

    def say():
        with pytest.raises(RuntimeWarning, match="first"):
            say_first()
        _core.warn("second")

    assert heard_of(say) == ["second"]


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", "import torch\nfrom sluiceway import _core\n" + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_thread_that_warns_while_the_interpreter_ends_does_no_harm():
    code = (
        "import threading, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "def forever():\n"
        "    while True: _core.warn('again')\n"
        "for _ in range(3): threading.Thread(target=forever, daemon=True).start()\n"
        "import time; time.sleep(0.2)\n"
    )
    said = set(run(code).splitlines())
    assert said <= {"sluiceway: warning: again"}  # After the end, as without Python.


def test_what_is_said_by_the_last_exit_handler_reaches_stderr():
    # Registered before the module was loaded, so called after its own.
    code = "import atexit\natexit._clear()\n"
    early = "import atexit, sys\natexit.register(lambda: _core.warn('at the end'))\n"
    done = subprocess.run(
        [sys.executable, "-c", early + "import torch\nfrom sluiceway import _core\n"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stderr.splitlines() == ["sluiceway: warning: at the end"]
    alone = subprocess.run(
        [sys.executable, "-c", "import torch\n" + code],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    address = re.compile(r"0x[0-9a-f]+")  # torch 2.15 misses handlers of its own.
    assert address.sub("", run(code)) == address.sub("", alone.stderr)
