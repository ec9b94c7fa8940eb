"""A run's last save as a transformers folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from sluiceway import checkpoint
from sluiceway.errors import InvalidArgument
from sluiceway.run_folder import RunFolder

_NOT_A_MODELS = {checkpoint.STATE_FILE, checkpoint.OPTIMIZER_FILE, checkpoint.RANDOM_FILE}


def export(run: Path, folder: Path) -> tuple[int, int]:
    """Copy config, tokenizer and safetensors of the last save; the folder appears only complete.

    Returns
    -------
    tuple of int
        The step of the save, and bytes written.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        There is no save, or `folder` is not empty.
    """
    RunFolder.check(run)
    source = RunFolder(run).checkpoint_path
    if not checkpoint.recover(source):
        raise InvalidArgument(
            f"{run}: has no save yet, expected {source.name}/; sluiceway resume {run} makes one"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgument(f"--to: {folder} is not empty, expected a new folder")
    position, _ = checkpoint.load_state(source)
    files = [path for path in sorted(source.iterdir()) if path.name not in _NOT_A_MODELS]

    def write(fresh: Path) -> None:
        for path in files:
            shutil.copyfile(path, fresh / path.name)

    if folder.exists():
        folder.rmdir()
    checkpoint.publish(folder, write)
    return position.step, sum(path.stat().st_size for path in files)
