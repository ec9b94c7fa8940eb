"""The folders of a store on disk: what they must be, and that nothing is left where none can be."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
    _refuse_twice(owner, paths)
    if io == "block":
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


def _refuse_twice(owner: str, paths: Sequence[str]) -> None:
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
    for folder, drives in zip(folders, found, strict=True):
        if not drives:
            what = "is not there" if folder in made else "holds no drive"
            others = " and ".join(str(f) for f, has in zip(folders, found, strict=True) if has)
            raise InvalidArgument(
                f"{owner}: {folder} {what}, and {others} holds drives of a store, expected a drive "
                "in each folder or in none; bring it back, or choose another path"
            )
    return [drive for drives in found for drive in drives]


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
