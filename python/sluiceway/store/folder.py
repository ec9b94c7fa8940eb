"""The folder of a store on disk: what it must be, and that nothing is left where it cannot be."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluiceway.errors import InvalidArgument, IoError
from sluiceway.store.drives import drive_path, drives_of_folder


@contextmanager
def drives_for(owner: str, tier: str, path: str | os.PathLike | None, io: str) -> Iterator[list]:
    """Paths of the drives of a store, while it is opened or made; none for host memory.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    tier, path, io : str
        As options say.

    Raises
    ------
    InvalidArgument
        A path where there is nothing to keep, or none where there is.
    IoError
        The folder cannot be made, or is none. One that was made goes again with any error.
    """
    if tier == "host":
        if path is not None:
            raise InvalidArgument(
                f"{owner}: path is {os.fspath(path)!r} and tier is 'host', which keeps nothing on "
                "disk, expected no path; leave it out, or say tier='disk'"
            )
        yield []
        return
    if path is None:
        raise InvalidArgument(
            f"{owner}: tier is 'disk' and there is no path, expected path= to name a folder on the "
            "disk to be used"
        )
    if io == "block":
        yield [os.fspath(path)]
        return
    folder = Path(path)
    made = _make(owner, folder)
    try:
        found = drives_of_folder(folder) or [drive_path(folder, 0)]
        yield [str(drive) for drive in found]
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


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
