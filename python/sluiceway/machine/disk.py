"""The disk of a folder: its speed, and whether files on it can bypass the page cache."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.

from sluiceway import _core
from sluiceway.errors import IoError

BLOCK_BYTES = 4 << 20  # Size of a request; the disk tier's default.
DEPTH = 32  # Requests in flight.


def has_direct(folder: Path) -> bool:
    """Tell whether files in this folder can be read and written without the page cache."""
    with nameless_file(folder, 4096) as path:
        return _core.drive_properties(path)["direct"]


def disk_rates(
    folder: Path, mixes: Sequence[str], io: str = "auto", size: int = 256 << 20,
    seconds: float = 0.25
) -> dict[str, Any]:  # fmt: skip
    """Measure reads and writes of a new file, with the disk tier's own requests.

    Parameters
    ----------
    mixes : sequence of str
        Any of read, write and both (reads and writes at once), measured one after the other.
    io : str
        auto, uring or posix.
    size : int
        Bytes of the file. On a slow disk fewer of them are used.
    seconds : float
        Time for each mix, and for filling the file first.

    Returns
    -------
    dict
        `backend`, `direct` (without the page cache), `note`, `memory_bytes`, and `huge_bytes`, the
        part of them in huge pages; for each mix `gbps` (1e9 bytes a second, writes made durable),
        `bytes` and `processor_s_per_gb`.

    Raises
    ------
    sluiceway.errors.IoError
        The disk refused a request, for example because it is full.
    sluiceway.errors.Unavailable
        `io` is uring and the system does not allow it.
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
    """Measure like `disk_rates`, but overwrite an existing file.

    With `whole_device`, `path` may be a block device; one that holds anything raises an error.
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
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # No O_TMPFILE on this file system.
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
    """Yield a path to a new nameless file of `size` bytes, which never stays behind.

    The path is valid in this process, and in processes that inherit its descriptors.
    """
    try:
        descriptor = _opened_without_name(folder)
        try:
            os.posix_fallocate(descriptor, 0, size)
            os.set_inheritable(descriptor, True)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    except OSError as error:  # The runtime's IoError too, which names a descriptor, not the folder.
        raise IoError(
            f"{folder}: cannot be measured, {os.strerror(error.errno or errno.EIO)}",
            error.errno,
            str(folder),
        ) from None
