"""Files and folders that appear only whole: written beside their target, synced, then renamed.

replace_file      one file, under a hidden name until it is complete
replace_folder    a folder under a name that a user chose: filled under a hidden name of its
                  own, so that nothing that lies beside the target, not even `target.old`, is
                  touched; then the two change places in one system call
publish_folder    a folder under a name of ours, for which `recover_folder` finishes what a
                  kill left half moved:

    target        the last one
    target.old    the one before it; only while the last is being moved into place
    target.new    being written; never read
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


def publish_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, then make it `target`; after an error the one before is there."""
    fresh, old = _sibling(target, "new"), _sibling(target, "old")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        write(fresh)
        _sync_folder(fresh)
        recover_folder(target)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        _sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except Exception:
        shutil.rmtree(fresh, ignore_errors=True)
        recover_folder(target)
        raise


def recover_folder(target: Path) -> bool:
    """Finish what a kill of `publish_folder` left half moved; whether `target` is there now."""
    old = _sibling(target, "old")
    if not target.exists() and old.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return target.exists()


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


def _sync_folder(folder: Path) -> None:
    for path in [*sorted(folder.iterdir()), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
