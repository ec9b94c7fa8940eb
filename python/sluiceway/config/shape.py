"""Reads what a model's config.json says of its context and of the type of its weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

CONFIG_FILE = "config.json"


def shape_of(folder: str | os.PathLike) -> dict[str, Any]:
    """Read the config.json of a model folder; empty if it cannot be read."""
    try:
        found = json.loads((Path(folder) / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def context_of(shape: dict[str, Any]) -> int | None:
    """Number of positions that the model supports; None if its config.json does not say."""
    for part in _parts(shape):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(part.get(key), int):
                return part[key]
    return None


def stored_dtype(shape: dict[str, Any]) -> str | None:
    """Name of the type in which a model is stored, such as "bfloat16"; None if it does not say."""
    for part in _parts(shape):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return part[key].removeprefix("torch.")
    return None


def _parts(shape: dict[str, Any]) -> list[dict[str, Any]]:
    text = shape.get("text_config")  # Of models that read more than text.
    return [shape, text] if isinstance(text, dict) else [shape]
