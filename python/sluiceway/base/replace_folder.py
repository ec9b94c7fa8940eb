"""A folder that is complete when it appears, under a name that a user chose.

It is filled under a hidden name of its own beside the target, so that nothing that lies there, not
even `target.old`, is touched; then the two change places in one system call.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sluiceway.errors import IoError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill; when the block ends it is `target`, and what was there is gone.

    Raises
    ------
    sluiceway.errors.IoError
        The disk refused. After this, and after any error of the block, `target` is as it was.
    """
    target = target.resolve()  # A link stays, and what it names is replaced.
    room = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        fresh = room / "new"
        fresh.mkdir()  # Unlike its room it has the rights that the user's umask gives.
        yield fresh
        for path in [*sorted(fresh.iterdir()), fresh]:
            _sync(path)
        _put_in_place(fresh, target)
        _sync(target.parent)
    except IoError:
        raise
    except OSError as error:
        raise IoError(
            f"{target}: cannot be written, {error.strerror}; what was there is untouched",
            error.errno,
            str(target),
        ) from None
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


def _put_in_place(fresh: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        fresh.rename(target)  # Also over an empty folder.
    elif not _exchange(fresh, target):
        # This file system cannot: a kill between these two leaves the old one under a hidden name.
        old = target.rename(fresh.with_name("old"))
        try:
            fresh.rename(target)
        except OSError:
            old.rename(target)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
