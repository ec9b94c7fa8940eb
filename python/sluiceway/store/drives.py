"""Where the drives of a store are: files `drive0.sws`, `drive1.sws` and so on, or whole devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_NAME = re.compile(r"drive([0-9]+)\.sws")


def drive_path(folder: Path, number: int) -> Path:
    """Of a drive in a folder; numbers count from 0 through all folders of a store."""
    return folder / f"drive{number}.sws"


def drives_of_folder(folder: Path) -> list[Path]:
    """The drive files that a folder holds, in order of their numbers; perhaps none."""
    found = {int(name[1]): p for p in folder.iterdir() if (name := _NAME.fullmatch(p.name))}
    return [found[number] for number in sorted(found)]


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
