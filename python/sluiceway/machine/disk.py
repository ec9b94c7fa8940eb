"""What a folder's disk does: whether the page cache is passed, and how fast it is."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: F401  The module carries no path to libtorch, which must be loaded before it.

from sluiceway import _core
from sluiceway.errors import IoError

BLOCK_BYTES = 4 << 20  # Of a request; what the disk tier moves at once by default.
DEPTH = 32  # Requests at once.


def has_direct(folder: Path) -> bool:
    """Whether files of this folder can be read and written past the page cache."""
    with nameless_file(folder, 4096) as path:
        return _core.drive_properties(path)["direct"]


def disk_rates(
    folder: Path, mixes: Sequence[str], io: str = "auto", size: int = 256 << 20,
    seconds: float = 0.25
) -> dict[str, Any]:  # fmt: skip
    """Measure reads and writes of a new file, as the disk tier makes them.

    Parameters
    ----------
    mixes : sequence of str
        read, write, or both: one after the other.
    io : str
        auto, uring or posix.
    size : int
        Bytes of the file. On a slow disk fewer of them are used.
    seconds : float
        Of each mix, and of the writing that comes before them.

    Returns
    -------
    dict
        `backend`, `direct` (past the page cache), `note`, `memory_bytes` and `huge_bytes` of it in
        huge pages; for each mix `gbps` (1e9 bytes a second, written ones durable), `bytes` and
        `processor_s_per_gb`.

    Raises
    ------
    sluiceway.errors.IoError
        The disk refused, for example because it is full.
    sluiceway.errors.Unavailable
        uring was asked for, and the system does not allow it.
    """
    with nameless_file(folder, size) as path:
        return file_rates(path, mixes, io, size, seconds)


def file_rates(
    path: str,
    mixes: Sequence[str],
    io: str,
    size: int,
    seconds: float,
    whole_device: bool = False,
) -> dict[str, Any]:
    """Do what `disk_rates` does with a file that is there, and overwrite it.

    With `whole_device` also with a block device, which is refused if it holds anything.
    """
    said = _core.drive_rates(
        path,
        list(mixes),
        io=io,
        block_bytes=BLOCK_BYTES,
        blocks=size // BLOCK_BYTES,
        depth=DEPTH,
        seconds=seconds,
        whole_device=whole_device,
    )
    found = {key: said[key] for key in ("backend", "direct", "note", "memory_bytes", "huge_bytes")}
    for rate in said["rates"]:
        gigabytes = rate["bytes"] / 1e9
        found[rate["mix"]] = {
            "gbps": gigabytes / rate["seconds"],
            "bytes": rate["bytes"],
            "processor_s_per_gb": rate["processor_seconds"] / gigabytes,
        }
    return found


def _opened_without_name(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # What a file system lacks it says.
            raise
    descriptor, name = tempfile.mkstemp(prefix=".sluiceway.", dir=folder)
    try:
        os.unlink(name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def nameless_file(folder: Path, size: int) -> Iterator[str]:
    """A path to a new file of `size` bytes without a name: nothing is left, whatever happens.

    The path is of this process and of those that inherit its descriptors.
    """
    try:
        descriptor = _opened_without_name(folder)
        try:
            os.posix_fallocate(descriptor, 0, size)
            os.set_inheritable(descriptor, True)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    except OSError as error:  # IoError of the runtime too: it names a descriptor, not the folder.
        raise IoError(
            f"{folder}: cannot be measured, {os.strerror(error.errno or errno.EIO)}",
            error.errno,
            str(folder),
        ) from None
