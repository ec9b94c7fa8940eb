"""Reads and writes files of tensors and plain values; reading runs no code from the file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from sluiceway.errors import Corrupt, first_line

_PICKLE_PROTOCOL = 2  # That of torch.save.


Around = Callable[[torch.UntypedStorage], AbstractContextManager[Any]]


def write_state(state: dict[str, Any], path: Path, around: Around | None = None) -> None:
    """Write a state; raise OSError if writing fails.

    Parameters
    ----------
    around : callable, optional
        Context manager that is entered before a tensor's storage is read, and left once it is
        written.
    """
    # Given a path, torch says "unexpected pos 704 vs 598" of a full disk; given a file, at least
    # the error before its own is the system's.
    try:
        with path.open("wb") as file:
            if around is None:
                torch.save(state, file)
                return
            with torch.serialization._open_zipfile_writer(file) as records:  # As torch.save does.
                writer = _RecordWriter(records, around)
                torch.serialization._save(state, writer, pickle, _PICKLE_PROTOCOL, False)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def read_state(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Read a state into host memory.

    Parameters
    ----------
    mapped : bool
        Tensors are pages of the file, which the system reads when they are used and may drop again.

    Raises
    ------
    sluiceway.errors.Corrupt
        The text names the folder of the save.
    """
    try:
        return torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)
    except (RuntimeError, OSError, EOFError) as error:
        raise Corrupt(f"{path.parent}: cannot be read, {first_line(error)}") from None


class _RecordWriter:
    """A writer of records that enters `around` for each storage."""

    def __init__(self, records: Any, around: Around) -> None:
        self._records, self._around = records, around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def write_record(self, name: str, content: Any, size: int) -> None:
        if not isinstance(content, torch.UntypedStorage):
            return self._records.write_record(name, content, size)
        with self._around(content):
            return self._records.write_record(name, content, size)
