"""Where the log of a run is."""

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
    """A folder that is given, or one that goes with whoever has this.

    One that goes is locked as long as it is in use; what a process that was killed has left is not,
    and goes when the next one is made.

    Parameters
    ----------
    path : path-like, optional
        Made if it is not there.
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
        """The file."""
        return self.path / LOG

    def close(self) -> None:
        """A temporary folder goes."""
        if self.is_temporary:
            self._remove()


def _make_locked() -> tuple[Path, int | None]:
    """A folder, and what holds its lock; None where the file system has no locks."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
        with suppress(FileNotFoundError):  # Somebody took it for left over, as it was not locked.
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
        return  # A forked child ends, and not who uses the folder.
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _remove_left_over() -> None:
    """Folders of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # It is another user's, in use, or gone by now.
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
