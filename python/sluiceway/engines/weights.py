"""Weights on a disk, to inspect, to load for evaluation, or to copy for an export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from sluiceway.model.folder import INDEX_FILE, check_model_folder, load_model
from sluiceway.model.weight_stream import copy_weights

_WEIGHTS = ".safetensors"


class CopiedWeights(Protocol):
    """Weights that can be written elsewhere, tensor by tensor.

    Attributes
    ----------
    size : int
        Bytes that `copy` reads.
    """

    size: int

    def copy(self, to: Path, dtype: str | None, advance: Callable[[int], None]) -> None:
        """Write the weights as safetensors, tensor by tensor.

        Parameters
        ----------
        to : Path
            A folder without weights.
        dtype : str or None
            fp32, bf16 or fp16; None: keep the dtype.
        advance : callable
            Called with the number of bytes that were copied since the last call.
        """


class SavedWeights(CopiedWeights, Protocol):
    """Weights of a model folder or of a save, checked to be complete.

    Attributes
    ----------
    shape : dict
        The model's config.json.
    """

    shape: dict[str, Any]

    def load(self, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
        """Load the model, with its weights stored as `dtype`."""


class WeightFiles:
    """The safetensors files of a transformers folder.

    Raises
    ------
    sluiceway.errors.IoError, sluiceway.errors.InvalidArgument, sluiceway.errors.Corrupt
        The same errors as `check_model_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.shape = check_model_folder(folder)
        self._folder = folder

    @property
    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{_WEIGHTS}"))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self._files)

    def load(self, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
        """Load the model into memory of its own, so that the files may change."""
        return load_model(self._folder, dtype).to(device)

    def copy(self, to: Path, dtype: str | None, advance: Callable[[int], None]) -> None:
        """Copy file by file, with the index that maps tensors to files."""
        total = sum(copy_weights(path, to / path.name, dtype, advance) for path in self._files)
        index = self._folder / INDEX_FILE
        if not index.exists():
            return
        if dtype is None:
            shutil.copyfile(index, to / INDEX_FILE)
            return
        content = json.loads(index.read_text(encoding="utf-8"))
        content["metadata"] = content.get("metadata", {}) | {"total_size": total}
        (to / INDEX_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
