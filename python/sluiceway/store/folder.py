"""Checks and makes the folders of a store on disk, and removes them again after an error."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sluiceway import _core
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.store.drives import drive_path, drives_of_folder

_NAMELESS = "states.tmp"  # The name of a file without a name, for a moment.


@contextmanager
def drives_for(owner: str, tier: str, paths: Sequence[str], io: str) -> Iterator[list[str]]:
    """Yield the paths of a store's drives to a block that opens or makes it; none with tier host.

    With tier auto, the drives are new files, whose names exist only for a moment.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    tier, io : str
        The options of these names.
    paths : sequence of str
        One path for each drive.

    Raises
    ------
    InvalidArgument
        A path is given for tier host, or none for another tier; a path is given twice; some
        folders hold drives and others do not; io is block, but tier is auto.
    IoError
        A folder cannot be made, or a path is not a folder. After any error, this call removes the
        folders that it made.
    """
    if tier == "host":
        if paths:
            given = " and ".join(map(repr, paths))
            raise InvalidArgument(
                f"{owner}: path is {given}, but tier is 'host', which keeps nothing on disk; leave "
                "path out, or set tier='disk'"
            )
        yield []
        return
    if not paths:
        raise InvalidArgument(
            f"{owner}: tier is {tier!r}, but there is no path; set path= to a folder on the disk "
            "to use"
        )
    refuse_twice(owner, paths)
    if io == "block":
        for path in paths:
            _check_device(owner, tier, Path(path))
        yield list(paths)
        return
    folders = [Path(path) for path in paths]
    made: list[Path] = []
    try:
        for folder in folders:
            if _make(owner, folder):
                made.append(folder)
        if tier == "auto":
            yield [str(folder / _NAMELESS) for folder in folders]
        else:
            yield [str(drive) for drive in _drives_in(owner, folders, made)]
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _check_device(owner: str, tier: str, path: Path) -> None:
    if tier == "auto":
        raise InvalidArgument(
            f"{owner}: io is 'block', but tier is 'auto', which makes files; choose another io and "
            "a folder, or tier='disk'"
        )
    if path.is_block_device():
        return
    what = "is not a block device" if path.exists() else "does not exist"
    raise InvalidArgument(
        f"{owner}: {path} {what}, but io='block' needs a block device; choose another path, or "
        "another io for a folder"
    )


def refuse_twice(owner: str, paths: Sequence[str]) -> None:
    """Raise InvalidArgument if two paths name the same place."""
    first: dict[str, str] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in first:
            same = "" if first[real] == path else f", which is {first[real]}"
            raise InvalidArgument(
                f"{owner}: path has {path} twice{same}; give each drive a path of its own, one on "
                "each disk"
            )
        first[real] = path


def _drives_in(owner: str, folders: list[Path], made: list[Path]) -> list[Path]:
    """List all drives of the folders, or a new one in each folder if they hold none."""
    found = [drives_of_folder(folder) for folder in folders]
    if not any(found):
        return [drive_path(folder, number) for number, folder in enumerate(folders)]
    if len(folders) > 1:
        _refuse_half_made(owner, [drive for drives in found for drive in drives])
    for folder, drives in zip(folders, found, strict=True):
        if not drives:
            what = "does not exist" if folder in made else "holds no drive"
            others = [str(f) for f, has in zip(folders, found, strict=True) if has]
            hold = "holds drives" if len(others) == 1 else "hold drives"
            raise InvalidArgument(
                f"{owner}: {folder} {what}, but {' and '.join(others)} {hold} of a store; bring "
                "the missing drive back, or choose another path"
            )
    return [drive for drives in found for drive in drives]


def _refuse_half_made(owner: str, drives: list[Path]) -> None:
    """Raise InvalidArgument if the making of a store was interrupted, or a drive was replaced.

    Headers are written last. If one is missing, the others tell whether the store was complete.
    """
    without = [drive for drive in drives if not _core.ChunkStore.is_drive(str(drive))]
    if not without:
        return
    named = " and ".join(map(str, without))
    lacks = "has no header of a drive" if len(without) == 1 else "have no header of a drive"
    if len(without) == len(drives):
        raise InvalidArgument(
            f"{owner}: {named} {lacks}. If nothing was trained yet, the making of the store was "
            "interrupted: remove these files, or choose another path"
        )
    others = " and ".join(str(drive) for drive in drives if drive not in without)
    raise InvalidArgument(
        f"{owner}: {named} {lacks}, but {others} has one. Bring back the original drive; or, if "
        "nothing was trained yet and the making of the store was interrupted, remove all of them"
    )


def _make(owner: str, folder: Path) -> bool:
    """Make the folder; return False if it existed."""
    try:
        folder.mkdir()
        return True
    except FileExistsError as error:
        if folder.is_dir():
            if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                return False
            raise IoError(
                f"{owner}: {folder} is not readable and writable for this user; choose another "
                "path",
                errno.EACCES,
                str(folder),
            ) from None
        kind = "a block device" if folder.is_block_device() else "a file"
        raise IoError(
            f"{owner}: {folder} is {kind}, expected a folder or a new name; choose another path, "
            "or io='block' for a device",
            error.errno,
            str(folder),
        ) from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"{folder.parent} does not exist" if missing else str(error.strerror)
        raise IoError(
            f"{owner}: cannot make the folder {folder}, {reason}; choose an existing folder, or a "
            "new name in one",
            error.errno,
            str(folder),
        ) from None
