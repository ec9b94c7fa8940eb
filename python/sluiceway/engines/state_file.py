"""Files of a save that hold tensors and plain values; read without running what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sluiceway.errors import Corrupt


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write a state; a disk that refuses is an OSError."""
    # Given a path, torch says "unexpected pos 704 vs 598" of a full disk; given a file, at least
    # the error before its own is the system's.
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def read_state(path: Path) -> dict[str, Any]:
    """Read a state into host memory.

    Raises
    ------
    sluiceway.errors.Corrupt
        The text names the folder of the save.
    """
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, OSError, EOFError) as error:
        raise Corrupt(f"{path.parent}: cannot be read, {str(error).splitlines()[0]}") from None
