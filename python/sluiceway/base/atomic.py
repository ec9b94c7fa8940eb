"""Files and folders that appear only whole: written beside their target, synced, then renamed.

replace_file      one file, under a hidden name until it is complete
replace_folder    a folder under a name that a user chose: filled under a hidden name of its
                  own, so that nothing that lies beside the target, not even `target.old`, is
                  touched; then the two change places in one system call
publish_folder    a folder under a name of ours, read back before it takes its name; the one
                  before it stays until the next is written, and `recover_folder` finishes what a
                  kill left half moved:

    target        the last one
    target.old    the one before it
    target.new    being written, or read back; without a target it is complete, and not yet moved
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
    """Write one file; after an OSError what was there before is untouched, and nothing is left."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):  # What went wrong before it is what counts.
            fresh.unlink()


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
        _sync_folder(fresh)
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


def publish_folder(
    target: Path, write: Callable[[Path], None], check: Callable[[Path], None]
) -> None:
    """Let `write` fill a folder, sync it, let `check` read it from the disk, then make it `target`.

    The one before it becomes `target.old`. After an error `target` is as it was. The folder that
    is `target.old` now is removed first, so that there never are more than two complete ones.
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
    """Where `publish_folder` keeps the one before `target`."""
    return _sibling(target, "old")


def is_half_moved(target: Path) -> bool:
    """Whether a kill, or a process that is at it, left `target` under its older name."""
    older, fresh = older_folder(target), _sibling(target, "new")
    return not target.exists() and older.exists() and fresh.exists()


def recover_folder(target: Path) -> None:
    """Finish what a kill of `publish_folder` or `go_back` left half moved."""
    if is_half_moved(target):
        older_folder(target).rename(target)


def go_back(target: Path) -> None:
    """Make the older one `target` again; what was `target` is gone."""
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


def _sync_folder(folder: Path, forget: bool = False) -> None:
    for path in [*sorted(folder.rglob("*")), folder]:
        _sync(path, forget)


def _sync(path: Path, forget: bool = False) -> None:
    """Make a file or a folder durable; then let go of its pages, so that a read is the disk's."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if forget and path.is_file():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
