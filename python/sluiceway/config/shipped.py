"""Finds configs and shapes of models that come with the package, in any working directory."""

from __future__ import annotations

import os
from pathlib import Path

_NAME = "configs"
_FOLDER = Path(__file__).parents[1] / _NAME


def is_shipped_name(path: str | os.PathLike) -> bool:
    """Tell a relative path below `configs`, where what comes with the package is found."""
    return Path(path).parts[:1] == (_NAME,)


def shipped(path: str | os.PathLike) -> Path:
    """Return the path; if nothing is there, and it is below `configs`, that of the package's.

    So `configs/laptop_1b.yaml` and `configs/shapes/llama_7b` mean the same in a checkout and beside
    an installed wheel.
    """
    path = Path(path)
    if is_shipped_name(path) and not path.exists():
        ours = _FOLDER.joinpath(*path.parts[1:])
        if ours.exists():
            return ours
    return path


def shipped_configs() -> list[str]:
    """Return the names of all configs that come with the package, sorted."""
    return sorted(f"{_NAME}/{file.relative_to(_FOLDER)}" for file in _FOLDER.rglob("*.yaml"))
