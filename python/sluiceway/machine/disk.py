"""What a folder's disk does: its rates, past the page cache where it lets us, and its space."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluiceway.errors import IoError

_PIECE = 4 << 20  # Bytes of a request; what the disk tier moves at once by default.
_SMALLEST = 4096  # Bytes; address, offset and length of O_DIRECT are multiples of it.


def check_folder(folder: Path) -> None:
    """Refuse what is not a folder that can be written to."""
    if not folder.is_dir():
        raise IoError(
            f"--path: {folder} is not a folder, expected one on the disk to be measured",
            errno.ENOENT,
            str(folder),
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IoError(f"--path: {folder} may not be written to", errno.EACCES, str(folder))


def has_direct(folder: Path) -> bool:
    """Whether files of this folder can be read and written past the page cache."""
    try:
        with _open_new(folder, os.O_DIRECT) as descriptor, mmap.mmap(-1, _SMALLEST) as page:
            return os.write(descriptor, page) == _SMALLEST
    except OSError:
        return False


def disk_rates(folder: Path, size: int = 256 << 20, seconds: float = 2.0) -> dict[str, Any]:
    """Write a file, then read it again, one request of 4 MiB at a time.

    Parameters
    ----------
    size : int
        Bytes of the file, at most: on a slow disk each way ends after about `seconds`.

    Returns
    -------
    dict
        `write_gbps`, durable when the clock stops; `read_gbps`; `bytes`; `direct`, whether both
        went past the page cache. Rates in GB/s, 1e9.

    Raises
    ------
    sluiceway.errors.IoError
        The disk refused, for example because it is full.
    """
    direct = has_direct(folder)
    try:
        with (
            _open_new(folder, os.O_DIRECT if direct else 0) as descriptor,
            mmap.mmap(-1, _PIECE) as piece,
        ):
            piece.write(os.urandom(_PIECE))  # Zeros would flatter a disk that compresses.
            written, write_s = _timed(lambda: os.write(descriptor, piece), size, seconds)
            began = time.perf_counter()
            os.fsync(descriptor)
            write_s += time.perf_counter() - began
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(descriptor, 0, os.SEEK_SET)
            count, read_s = _timed(lambda: os.readv(descriptor, [piece]), written, seconds)
    except OSError as error:
        raise IoError(
            f"{folder}: cannot be measured, {error.strerror}", error.errno, str(folder)
        ) from None
    return {
        "write_gbps": written / write_s / 1e9,
        "read_gbps": count / read_s / 1e9,
        "bytes": written,
        "direct": direct,
    }


def _timed(move: Any, size: int, seconds: float) -> tuple[int, float]:
    count, began = 0, time.perf_counter()
    while count < size and time.perf_counter() - began < seconds:
        moved = move()
        if moved <= 0:
            break
        count += moved
    return count, time.perf_counter() - began


@contextlib.contextmanager
def _open_new(folder: Path, flags: int) -> Iterator[int]:
    """A file without a name, so that nothing of it is left, whatever happens."""
    made, name = tempfile.mkstemp(prefix=".sluiceway.", dir=folder)
    os.close(made)
    try:
        descriptor = os.open(name, os.O_RDWR | flags)
    finally:
        os.unlink(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
