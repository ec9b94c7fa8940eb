"""Where the drives of a store are: files `drive0.sws`, `drive1.sws` and so on, or whole devices."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluiceway.errors import InvalidArgument, IoError

_FIRST = "drive0.sws"
_NAME = re.compile(r"drive([0-9]+)\.sws")


def drive_path(folder: Path, number: int) -> Path:
    """Of a drive in a folder; numbers count from 0 through all folders of a store."""
    return folder / f"drive{number}.sws"


def drives_of_folder(folder: Path) -> list[Path]:
    """The drive files that a folder holds, in order of their numbers; perhaps none."""
    found = {int(name[1]): p for p in folder.iterdir() if (name := _NAME.fullmatch(p.name))}
    return [found[number] for number in sorted(found)]


def find_drives(paths: Sequence[Path]) -> list[str]:
    """The drives of a store, as `_core.open_store` takes them.

    Parameters
    ----------
    paths : sequence of Path
        Folders, which stand for the drive files that they hold; files; block devices. Order counts.

    Raises
    ------
    sluiceway.errors.IoError
        Something is not there, or may not be read.
    sluiceway.errors.InvalidArgument
        A folder holds no drive file.
    """
    drives = []
    for path in paths:
        if not path.exists():
            raise IoError(
                f"store: {path} is not there, expected a folder that holds {_FIRST}, a drive file "
                "or a device",
                errno.ENOENT,
                str(path),
            )
        found = drives_of_folder(path) if path.is_dir() else [path]
        if not found:
            name = drive_path(path, len(drives)).name
            raise InvalidArgument(f"store: {path} is no store, it holds no {name}; expected one")
        drives += map(str, found)
    return drives


def drive_warnings(described: dict[str, Any]) -> list[str]:
    """What somebody should know of the drives of a store: a line each.

    Parameters
    ----------
    described : dict
        What `_core.ChunkStore.describe` says.
    """
    lines = []
    for drive in described["drives"]:
        if not drive["direct"]:
            lines.append(
                f"{drive['path']}: its file system has no direct I/O (tmpfs has none); what is "
                "stored there takes memory, and is checked and kept all the same"
            )
        if drive["note"]:
            lines.append(f"{drive['path']}: {drive['note']}")
    return lines
