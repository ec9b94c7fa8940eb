"""Mount a small volume, and fill it so far that even existing files cannot be overwritten.

The volume is XFS on a loop device. A copy of the files by reference shares their blocks, so the
next write to any of them needs a new block, which a full volume refuses. A snapshot and a full disk
do the same to a run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VOLUME_BYTES = 320 << 20  # Smallest size that XFS accepts: 300 MiB.
_PIECES = (64 << 20, 1 << 20, 64 << 10, 4 << 10)


@contextmanager
def volume(folder: Path) -> Iterator[Path]:
    """Mount an empty volume under a folder, and remove it afterwards."""
    image, place = folder / "volume.img", folder / "volume"
    place.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, VOLUME_BYTES)
    subprocess.run(["mkfs.xfs", "-q", "-f", "-m", "reflink=1", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        shutil.rmtree(place)
        image.unlink()


def fill(place: Path, left: int = 0) -> None:
    """Take the free space but for `left` bytes."""
    place.mkdir(exist_ok=True)
    for piece in _PIECES:
        for count in range(VOLUME_BYTES // 4096):
            if shutil.disk_usage(place).free < left + piece:
                break
            try:
                with (place / f"filler{piece}.{count}").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, piece)
            except OSError:
                break


def share(folder: Path, copy: Path) -> None:
    """Copy files so that they share their blocks with the copy."""
    subprocess.run(["cp", "-r", "--reflink=always", folder, copy], check=True)
