"""Saves: a folder that is complete when it appears, whatever happens while it is written.

A kill at any moment leaves the last save or the one before it whole; `base/atomic.py` says how.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from sluiceway.base.atomic import publish_folder
from sluiceway.engines.protocol import Engine
from sluiceway.engines.state_file import read_state, write_state
from sluiceway.errors import Corrupt, IoError

STATE_FILE = "state.json"
RANDOM_FILE = "random.pt"
_FORMAT = 1
# What a tokenizer and a model's config consist of, weights apart.
_SIDE_FILES = ("*.json", "*.model", "*.jinja", "*.txt", "*.py", "*.tiktoken")


@dataclass
class Position:
    """How far a run has come; everything else of its state is weights, moments and noise."""

    step: int = 0
    batch: int = 0  # Micro-batches taken from the data.
    skipped: int = 0
    skipped_in_row: int = 0
    tokens: int = 0
    seconds: float = 0.0  # In steps, over all sittings.
    first_eval_loss: float | None = None
    last_eval_loss: float | None = None


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, then make it `target` in one rename.

    Raises
    ------
    sluiceway.errors.IoError
        The disk refused; what `target` held before is still there.
    """
    try:
        publish_folder(target, write)
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors wrap what the system said in classes of their own.
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        kept = "the one before it is untouched" if target.exists() else "there is none before it"
        raise IoError(
            f"{target}: the save could not be written, {reason}; {kept}",
            getattr(error, "errno", None),
            str(target),
        ) from None


def save(
    target: Path,
    position: Position,
    engine: Engine,
    side_files: Path,
    extra: dict[str, Any],
) -> None:
    """Save a run between two steps.

    Parameters
    ----------
    side_files : Path
        The model folder, whose tokenizer files are copied, so that a save can stand alone.
    extra : dict
        Plain values kept beside the position and given back by `load_state`.
    """
    engine.synchronize()

    def write(folder: Path) -> None:
        copy_side_files(side_files, folder)
        engine.save(folder)
        write_state(_noise() | {"scaler": engine.scaler.state_dict()}, folder / RANDOM_FILE)
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        state = {"format": _FORMAT, "position": asdict(position), "files": sizes, **extra}
        (folder / STATE_FILE).write_text(json.dumps(state, indent=1) + "\n")
        for path in folder.iterdir():
            path.chmod(0o644)  # safetensors makes files that only their owner may read.

    publish(target, write)


def copy_side_files(source: Path, folder: Path) -> None:
    """Copy tokenizer and config files of a model folder, not its weights nor a save's own state."""
    for pattern in _SIDE_FILES:
        for path in sorted(source.glob(pattern)):
            if path.name != STATE_FILE and not path.name.endswith(".index.json"):
                shutil.copyfile(path, folder / path.name)


def load_state(target: Path) -> tuple[Position, dict[str, Any]]:
    """Read a save's position and extra values, and check that its files are whole.

    Raises
    ------
    sluiceway.errors.Corrupt
        A file is missing or has another size than it was written with.
    """
    path = target / STATE_FILE
    try:
        state = json.loads(path.read_text())
        position = Position(**state["position"])
        sizes = state["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path}: cannot be read, {error}; the save is not usable") from None
    if state.get("format") != _FORMAT:
        raise Corrupt(f"{path}: format is {state.get('format')}, this version reads {_FORMAT}")
    for name, size in sizes.items():
        file = target / name
        found = file.stat().st_size if file.exists() else 0
        if found != size:
            raise Corrupt(f"{file}: {found} bytes, expected {size}; the save is not usable")
    return position, state


def load_into(target: Path, engine: Engine) -> None:
    """Restore an engine that was opened from `target`, and every random generator."""
    noise = read_state(target / RANDOM_FILE)
    engine.load(target)
    engine.scaler.load_state_dict(noise["scaler"])
    torch.set_rng_state(noise["torch"])
    if noise["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(noise["cuda"])
    version, words, gauss = noise["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, place, has_gauss, cached = noise["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, cached))


def _noise() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    numpy = (kind, torch.from_numpy(keys.astype(np.int64)), place, has_gauss, cached)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": (version, list(words), gauss),
        "numpy": numpy,
    }
