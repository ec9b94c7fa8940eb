"""How a command ends: a code for whoever called it, and a line or two for whoever reads it.

0 done; 1 failed while running; 2 the command or the config is wrong; 3 refused, a budget is too
small or a drive is in use; 130 interrupted after the step in flight.
"""

from __future__ import annotations

import errno
import sys

from sluiceway.base.interrupt import Interrupted
from sluiceway.errors import Error, InvalidArgument, IoError, OutOfMemory, Unavailable

DONE, FAILED, WRONG, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130
_WRONG_PATH = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES)


def exit_code(error: BaseException) -> int:
    """The code that an error ends a command with."""
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
    """One or two lines on stderr."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Interrupted):
        lines = ["interrupted; the step in flight is finished and saved, resume goes on from it"]
    elif isinstance(error, KeyboardInterrupt):
        lines = ["interrupted; what was saved before is still there"]
    elif not isinstance(error, Error):
        lines = [f"{type(error).__name__}: {lines[0] if lines else 'no text'}", "see --debug"]
    print("sluiceway: " + "\n  ".join(lines[:2] or [type(error).__name__]), file=sys.stderr)
