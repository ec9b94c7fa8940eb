"""Folder of a run's log, given by the user or temporary."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

LOG = "scalars.log"
_TEMPORARY = "sluiceway-zo-"


class LogFolder:
    """The given folder, or a temporary one that is deleted with this object.

    A temporary folder is locked while it is in use. A folder left behind by a killed process is
    not locked, and is deleted when the next one is made.

    Parameters
    ----------
    path : path-like, optional
        Made if it does not exist; without it the folder is temporary.
    """

    def __init__(self, path: str | os.PathLike | None) -> None:
        self.is_temporary = path is None
        if path is None:
            _remove_left_over()
            self.path, lock = _make_locked()
            self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        else:
            self.path = Path(path)
            self.path.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """Path of the log file."""
        return self.path / LOG

    def close(self) -> None:
        """Delete the folder if it is temporary."""
        if self.is_temporary:
            self._remove()


def _make_locked() -> tuple[Path, int | None]:
    """Make a folder and return it with the descriptor of its lock, or None without locks."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
        with suppress(FileNotFoundError):  # Another process deleted it before it was locked.
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                os.close(lock)
                return path, None
            if path.exists():
                return path, lock
            os.close(lock)


def _remove(path: Path, lock: int | None, made_in: int) -> None:
    if os.getpid() != made_in:
        return  # A forked child ends, but its parent still uses the folder.
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _remove_left_over() -> None:
    """Delete the folders of killed processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # Another user's folder, or in use, or deleted by now.
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
