"""The folders of a store on disk: what they must be, and that nothing is left where none can be."""

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


@contextmanager
def drives_for(owner: str, tier: str, paths: Sequence[str], io: str) -> Iterator[list[str]]:
    """Paths of the drives of a store, while it is opened or made; none for host memory.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    tier, io : str
        As options say.
    paths : sequence of str
        One for each drive.

    Raises
    ------
    InvalidArgument
        A path where there is nothing to keep, or none where there is; one that is given twice;
        folders of which some hold drives and others do not.
    IoError
        A folder cannot be made, or is none. One that was made goes again with any error.
    """
    if tier == "host":
        if paths:
            given = " and ".join(map(repr, paths))
            raise InvalidArgument(
                f"{owner}: path is {given} and tier is 'host', which keeps nothing on disk, "
                "expected no path; leave it out, or say tier='disk'"
            )
        yield []
        return
    if not paths:
        raise InvalidArgument(
            f"{owner}: tier is 'disk' and there is no path, expected path= to name a folder on the "
            "disk to be used"
        )
    refuse_twice(owner, paths)
    if io == "block":
        for path in paths:
            _check_device(owner, Path(path))
        yield list(paths)
        return
    folders = [Path(path) for path in paths]
    made: list[Path] = []
    try:
        for folder in folders:
            if _make(owner, folder):
                made.append(folder)
        yield [str(drive) for drive in _drives_in(owner, folders, made)]
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _check_device(owner: str, path: Path) -> None:
    if path.is_block_device():
        return
    what = "is no block device" if path.exists() else "is not there"
    raise InvalidArgument(
        f"{owner}: {path} {what}, expected one, as io is 'block'; choose another path, or another "
        "io for a folder"
    )


def refuse_twice(owner: str, paths: Sequence[str]) -> None:
    """Refuse a path that is given twice, by whatever name."""
    first: dict[str, str] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in first:
            same = "" if first[real] == path else f", which is {first[real]}"
            raise InvalidArgument(
                f"{owner}: path has {path} twice{same}, expected another for each drive; one on "
                "each disk"
            )
        first[real] = path


def _drives_in(owner: str, folders: list[Path], made: list[Path]) -> list[Path]:
    """All that are there, or one in each folder where none is."""
    found = [drives_of_folder(folder) for folder in folders]
    if not any(found):
        return [drive_path(folder, number) for number, folder in enumerate(folders)]
    if len(folders) > 1:
        _refuse_half_made(owner, [drive for drives in found for drive in drives])
    for folder, drives in zip(folders, found, strict=True):
        if not drives:
            what = "is not there" if folder in made else "holds no drive"
            others = [str(f) for f, has in zip(folders, found, strict=True) if has]
            hold = "holds drives" if len(others) == 1 else "hold drives"
            raise InvalidArgument(
                f"{owner}: {folder} {what}, and {' and '.join(others)} {hold} of a store, expected "
                "a drive in each folder or in none; bring it back, or choose another path"
            )
    return [drive for drives in found for drive in drives]


def _refuse_half_made(owner: str, drives: list[Path]) -> None:
    """Headers are written last: where one is missing the others say whether there was a store."""
    without = [drive for drive in drives if not _core.ChunkStore.is_drive(str(drive))]
    if not without:
        return
    named = " and ".join(map(str, without))
    lacks = "has no header of a drive" if len(without) == 1 else "have no header of a drive"
    if len(without) == len(drives):
        raise InvalidArgument(
            f"{owner}: {named} {lacks}, expected that of a store, whose making was interrupted if "
            "nothing was trained yet; then remove what is there, or choose another path"
        )
    others = " and ".join(str(drive) for drive in drives if drive not in without)
    raise InvalidArgument(
        f"{owner}: {named} {lacks}, and {others} has one, expected drives of one store; bring "
        "back what lay there, or, if nothing was trained yet and the making of the store was "
        "interrupted, remove all of them"
    )


def _make(owner: str, folder: Path) -> bool:
    """Whether the folder was made; false: it was there."""
    try:
        folder.mkdir()
        return True
    except FileExistsError as error:
        if folder.is_dir():
            if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                return False
            raise IoError(
                f"{owner}: {folder} may not be written to, expected a folder of our own; choose "
                "another path",
                errno.EACCES,
                str(folder),
            ) from None
        kind = "a block device" if folder.is_block_device() else "a file"
        raise IoError(
            f"{owner}: {folder} is {kind}, expected a folder, or nothing yet; choose another path, "
            "or io='block' for a device",
            error.errno,
            str(folder),
        ) from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"{folder.parent} is not there" if missing else str(error.strerror)
        raise IoError(
            f"{owner}: {folder} cannot be made, {reason}, expected a folder that is there, or a "
            "new one in a folder that is; choose another path",
            error.errno,
            str(folder),
        ) from None
