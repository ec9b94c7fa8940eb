"""Holds the engine for all parts of an optimizer, and frees it when the optimizer is closed.

A reference to a closed optimizer thus keeps no store open and no ring in memory.
"""

from __future__ import annotations

from typing import Any

from sluiceway.errors import InvalidArgument


class HeldEngine:
    """Forwards every attribute to the engine until `free()`.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : OffloadEngine
    """

    __slots__ = ("_engine", "_owner")

    def __init__(self, owner: str, engine: Any) -> None:
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_engine", engine)

    def free(self) -> None:
        """Drop the engine once no code uses it any more; idempotent."""
        object.__setattr__(self, "_engine", None)

    def _there(self) -> Any:
        if self._engine is None:
            raise InvalidArgument(f"{self._owner}: the optimizer is closed; make a new one")
        return self._engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._there(), name, value)
