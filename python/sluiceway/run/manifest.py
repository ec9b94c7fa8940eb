"""Lists the files of a save with length and checksum, in a file with a checksum of its own.

A manifest is a JSON object with the key `files`, whose last line is the checksum of every byte
before that line:

    {
     "format": 2,
     "files": {"model.safetensors": {"bytes": 123, "xxh3": "<32 hex digits>"}, ...},
     ...,
     "xxh3": "<32 hex digits>"
    }

`is_sealed` detects any change of such a file. The checksums of files equal those that `xxh128sum`
prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.

from sluiceway import _core
from sluiceway.errors import Corrupt

_PIECE = 256 << 10  # Stays in a cache of the core between the read and the sum.
_SEAL = ',\n "xxh3": '


def sums_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Length and checksum of every file, by path inside the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "xxh3": _sum_of(path)}
        for path in files
    }


def _nobody(count: int) -> None:
    pass


def check_files(
    folder: Path, sums: dict[str, Any], advance: Callable[[int], None] = _nobody
) -> None:
    """Read every file of `sums` and compare.

    Parameters
    ----------
    sums : dict
        In the form that `sums_of` returns; a number in place of a dict is a length without
        checksum.
    advance : callable
        Called with the number of bytes read since the last call.

    Raises
    ------
    sluiceway.errors.Corrupt
        A file differs or cannot be read. The text names the first such file, with the value found
        and the value expected.
    """
    for name, expected in sums.items():
        path = folder / name
        size = expected["bytes"] if isinstance(expected, dict) else expected
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise Corrupt(f"{path}: {found} bytes, expected {size}; the save is not usable")
        if not isinstance(expected, dict):
            continue
        try:
            xxh3 = _sum_of(path, advance)
        except OSError as error:
            raise Corrupt(
                f"{path}: cannot be read, {error.strerror}; the save is not usable"
            ) from None
        if xxh3 != expected["xxh3"]:
            raise Corrupt(
                f"{path}: the checksum of its {size} bytes is {xxh3}, expected "
                f"{expected['xxh3']}; the save is not usable"
            )


def bytes_of(sums: dict[str, Any]) -> int:
    """Number of bytes that `check_files` reads."""
    return sum(one["bytes"] for one in sums.values() if isinstance(one, dict))


def sealed(content: dict[str, Any]) -> bytes:
    """Return the text of a manifest."""
    body = json.dumps(content, indent=1).removesuffix("\n}")
    return f'{body}{_SEAL}"{_sum_of_bytes(body.encode())}"\n}}\n'.encode()


def is_sealed(raw: bytes) -> bool:
    """True if `sealed` wrote these bytes."""
    body = raw.rpartition(_SEAL.encode())[0]
    return bool(body) and raw == body + f'{_SEAL}"{_sum_of_bytes(body)}"\n}}\n'.encode()


def _sum_of_bytes(content: bytes) -> str:
    checksum = _core.Checksum()
    checksum.update(content)
    return checksum.hex()


def _sum_of(path: Path, advance: Callable[[int], None] = _nobody) -> str:
    """Checksum of a file, read piece by piece; neither reading nor summing holds the GIL."""
    checksum, piece = _core.Checksum(), memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            checksum.update(piece[:count])
            advance(count)
    return checksum.hex()
