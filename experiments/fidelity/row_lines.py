"""Store rows in a file, one JSON object a line, safely even when the writer is killed.

append_row() locks the file, writes a row with one call and syncs it, so two writers keep each
other's rows. A line that a kill or a full disk left without its end does not count as a row; the
next append cuts it off.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Read every whole line; return no rows if the file does not exist."""
    if not path.exists():
        return []
    content, rows = path.read_bytes(), []
    for number, line in enumerate(content[: _whole_bytes(content)].splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}:{number}: is no row ({error}), expected one JSON object a line. Remove "
                "the line to repeat its run."
            ) from None
    return rows


def append_row(path: Path, row: Row) -> None:
    """Append one row after the last whole line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, sort_keys=True) + "\n").encode()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = _whole_bytes(path.read_bytes())
        os.ftruncate(file, whole)
        written = os.pwrite(file, line, whole)
        os.fsync(file)
    finally:
        os.close(file)
    if written != len(line):
        raise OSError(f"{path}: wrote only {written} of {len(line)} bytes; free some disk space")


def _whole_bytes(content: bytes) -> int:
    """Count the bytes up to the end of the last complete line."""
    return content.rfind(b"\n") + 1
