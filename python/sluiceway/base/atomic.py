"""Writes files and folders that appear only complete: beside the target, synced, then renamed.

replace_file      replaces one file, which has a hidden name until it is complete
replace_folder    replaces a folder whose name the user chose. The new folder is filled under a
                  hidden name, so nothing beside the target is touched, not even `target.old`.
                  Then one system call exchanges the two names.
publish_folder    replaces a folder whose name we chose, and reads the new one back before it
                  takes the name. The previous folder stays until the next one is written, and
                  `recover_folder` finishes a move that a kill interrupted:

    target        the last folder
    target.old    the previous folder
    target.new    being written or read back; if there is no target, it is complete but not moved
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sluiceway.errors import IoError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def replace_file(path: Path, content: bytes) -> None:
    """Write one file; an OSError leaves the previous content untouched and no other file behind."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):  # The first error is the one that counts.
            fresh.unlink()


@contextlib.contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill; when the block ends, it replaces `target` and its old content.

    Raises
    ------
    sluiceway.errors.IoError
        Writing failed. After this error, or any error raised in the block, `target` is unchanged.
    """
    target = target.resolve()  # A link stays; the folder it points to is replaced.
    room = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        fresh = room / "new"
        fresh.mkdir()  # Unlike `room`, it has the permissions of the user's umask.
        yield fresh
        _sync_folder(fresh)
        _put_in_place(fresh, target)
        _sync(target.parent)
    except IoError:
        raise
    except OSError as error:
        raise IoError(
            f"{target}: cannot be written, {error.strerror}; its previous content is untouched",
            error.errno,
            str(target),
        ) from None
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


def publish_folder(
    target: Path, write: Callable[[Path], None], check: Callable[[Path], None]
) -> None:
    """Let `write` fill a folder, sync it, let `check` read it from the disk, then make it `target`.

    The previous `target` becomes `target.old`. An error leaves `target` unchanged. The existing
    `target.old` is removed first, so there are never more than two complete folders.
    """
    fresh, old = _sibling(target, "new"), older_folder(target)
    recover_folder(target)
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        shutil.rmtree(old, ignore_errors=True)
        write(fresh)
        _sync_folder(fresh, forget=True)
        check(fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        _sync(target.parent)
    except Exception:
        recover_folder(target)
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def older_folder(target: Path) -> Path:
    """Path at which `publish_folder` keeps the previous `target`."""
    return _sibling(target, "old")


def is_half_moved(target: Path) -> bool:
    """Tell whether `target` is missing because a move was killed, or is running right now."""
    older, fresh = older_folder(target), _sibling(target, "new")
    return not target.exists() and older.exists() and fresh.exists()


def recover_folder(target: Path) -> None:
    """Finish the move that a kill of `publish_folder` or `go_back` interrupted."""
    if is_half_moved(target):
        older_folder(target).rename(target)


def go_back(target: Path) -> None:
    """Put the previous folder in the place of `target`, whose present content is deleted."""
    fresh = _sibling(target, "new")
    shutil.rmtree(fresh, ignore_errors=True)
    if target.exists():
        target.rename(fresh)
    older_folder(target).rename(target)
    _sync(target.parent)
    shutil.rmtree(fresh, ignore_errors=True)


def _sibling(target: Path, kind: str) -> Path:
    return target.with_name(f"{target.name}.{kind}")


def _put_in_place(fresh: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        fresh.rename(target)  # Also over an empty folder.
    elif not _exchange(fresh, target):
        # This file system cannot exchange names. A kill between these two renames leaves the old
        # folder under a hidden name.
        old = target.rename(fresh.with_name("old"))
        try:
            fresh.rename(target)
        except OSError:
            old.rename(target)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return False if the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def _sync_folder(folder: Path, forget: bool = False) -> None:
    for path in [*sorted(folder.rglob("*")), folder]:
        _sync(path, forget)


def _sync(path: Path, forget: bool = False) -> None:
    """Make a file or folder durable; `forget` drops its cached pages, so reads use the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if forget and path.is_file():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
