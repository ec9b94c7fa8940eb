"""The end of a command: an exit code for the caller, and one or two lines for the reader.

0: done. 1: failed while running. 2: the command or the config is wrong. 3: refused, because a
budget is too small or a drive is in use. 130: interrupted, after the step in flight.
"""

from __future__ import annotations

import errno
import sys

from sluiceway.base.interrupt import Interrupted
from sluiceway.errors import Error, InvalidArgument, IoError, OutOfMemory, Unavailable

DONE, FAILED, WRONG, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130
_WRONG_PATH = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES)


def exit_code(error: BaseException) -> int:
    """Exit code of a command that ends with this error."""
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return INTERRUPTED
    if isinstance(error, OutOfMemory):
        return REFUSED
    if isinstance(error, IoError) and error.errno == errno.EBUSY:
        return REFUSED
    if isinstance(error, InvalidArgument | Unavailable):
        return WRONG
    if isinstance(error, IoError) and error.errno in _WRONG_PATH:
        return WRONG
    return FAILED


def say(error: BaseException) -> None:
    """Print an error as one or two lines on stderr."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Interrupted):
        lines = [f"interrupted; the last step is saved; go on with: sluiceway resume {error}"]
    elif isinstance(error, KeyboardInterrupt):
        lines = ["interrupted; earlier saves are still there"]
    elif not isinstance(error, Error):
        lines = [f"{type(error).__name__}: {lines[0] if lines else 'no text'}", "see --debug"]
    print("sluiceway: " + "\n  ".join(lines[:2] or [type(error).__name__]), file=sys.stderr)
