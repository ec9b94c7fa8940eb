"""The cases of forked children, in a process of their own.

Once autograd has started threads, as reentrant checkpointing makes it, torch refuses every backward
of a forked child, so no other file's tests may have run before these.
"""

from __future__ import annotations

import subprocess
import sys

from conftest import REPOSITORY


def test_a_forked_child_reads_what_is_applied_and_says_where_it_cannot():
    cases = REPOSITORY / "tests/python/fork_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([*command, cases], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
