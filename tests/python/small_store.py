"""Small chunk stores on files, and where on the first drive their bytes lie."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.
from sluiceway import _core
from sluiceway.store.drives import drive_path

BLOCK = 4096
CHUNKS = 6
CHUNK = 2 * BLOCK
SUPERBLOCKS = (BLOCK, 2 * BLOCK)
TABLE = 76  # Where a superblock says where the live table is.
RUN_STATE = TABLE + 24


def contents(step: int, chunk: int) -> bytes:
    """Bytes that `make_store` writes to a chunk in a step."""
    return bytes([16 * step + chunk]) * CHUNK


def make_store(
    folder: Path, drives: int = 1, steps: int = 2, slots: int = 2, **options
) -> list[str]:
    """A store with a state of six chunks, written by every step; paths of its drives."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(drive_path(folder, number)) for number in range(drives)]
    regions = [("state", CHUNK, CHUNKS, slots), ("gradient", BLOCK, CHUNKS, 1)]
    store = _core.create_store(
        paths, regions, catalogue=b"tensors", run_state_bytes=BLOCK, **options
    )
    for step in range(1, steps + 1):
        for chunk in range(CHUNKS):
            store.write(0, chunk, contents(step, chunk))
        store.commit(step, f"state of step {step}".encode())
        if slots > 2 and step == 1:
            store.pin()
    store.close()
    return paths


def newest_superblock(path: str) -> int:
    """Offset of the newest superblock."""
    with open(path, "rb") as file:
        bytes_ = file.read(3 * BLOCK)
    return max(SUPERBLOCKS, key=lambda at: struct.unpack_from("<Q", bytes_, at + 28)[0])


def place_of(path: str, what: int) -> int:
    """Offset of the live table (TABLE) or run state (RUN_STATE)."""
    with open(path, "rb") as file:
        file.seek(newest_superblock(path) + what)
        return struct.unpack("<Q", file.read(8))[0] * BLOCK


def place_of_chunk(path: str, step: int, chunk: int) -> int:
    """Offset of a chunk as a step wrote it."""
    at = Path(path).read_bytes().find(contents(step, chunk))
    assert at > 0
    return at


def flip(path: str, offset: int) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 8]))
        os.fsync(file.fileno())


def set_version(path: str, version: int) -> None:
    """Let a drive's header be of another version, with a checksum that holds."""
    with open(path, "r+b") as file:
        header = bytearray(file.read(BLOCK))
        assert header[-8:] == _sum(header)
        header[8:12] = struct.pack("<I", version)
        file.seek(0)
        file.write(header[:-8] + _sum(header))


def _sum(header: bytes) -> bytes:
    # Of so many bytes the lower half of the 128-bit XXH3 is the 64-bit one.
    checksum = _core.Checksum()
    checksum.update(bytes(header[:-8]))
    return struct.pack("<Q", int(checksum.hex()[16:], 16))
