"""Drives of a store: files `drive0.sws`, `drive1.sws` and so on, or whole devices."""

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
    """Path of a drive in a folder; numbers count from 0 through all folders of a store."""
    return folder / f"drive{number}.sws"


def drives_of_folder(folder: Path) -> list[Path]:
    """Drive files in a folder in the order of their numbers; may be empty."""
    found = {int(name[1]): p for p in folder.iterdir() if (name := _NAME.fullmatch(p.name))}
    return [found[number] for number in sorted(found)]


def find_drives(paths: Sequence[Path]) -> list[str]:
    """List the drives of a store for `_core.open_store`.

    Parameters
    ----------
    paths : sequence of Path
        Folders, which stand for the drive files in them; drive files; block devices. Their order
        matters.

    Raises
    ------
    sluiceway.errors.IoError
        A path does not exist.
    sluiceway.errors.InvalidArgument
        A folder holds no drive file.
    """
    drives = []
    for path in paths:
        if not path.exists():
            raise IoError(
                f"store: {path} does not exist, expected a folder with {_FIRST}, a drive file or a "
                "device",
                errno.ENOENT,
                str(path),
            )
        found = drives_of_folder(path) if path.is_dir() else [path]
        if not found:
            name = drive_path(path, len(drives)).name
            raise InvalidArgument(
                f"store: {path} holds no {name}, so it is not a store; check the path"
            )
        drives += map(str, found)
    return drives


def drive_warnings(described: dict[str, Any]) -> list[str]:
    """List warnings about the drives of a store, one line each.

    Parameters
    ----------
    described : dict
        The result of `_core.ChunkStore.describe`.
    """
    lines = []
    for drive in described["drives"]:
        if not drive["direct"]:
            lines.append(
                f"{drive['path']}: its file system has no direct I/O (tmpfs has none); stored data "
                "takes memory there, but is checked and kept all the same"
            )
        if drive["note"]:
            lines.append(f"{drive['path']}: {drive['note']}")
    return lines
