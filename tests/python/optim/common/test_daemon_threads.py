"""A daemon thread that is inside of C++ when the interpreter ends does not end the process."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import threading, time
import torch
from sluiceway import _core

taken = bytearray(64 << 20)


def work():
    while True:
        _core.Checksum().update(taken)


for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def test_threads_that_let_the_gil_go_do_not_end_the_process():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
