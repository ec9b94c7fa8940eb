"""The last save of a run, for commands that only read it, also while the run goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sluiceway.config.file import check_config, load_config
from sluiceway.config.schema import Config
from sluiceway.errors import Error, InvalidArgument
from sluiceway.run.run_folder import CONFIG_FILE, RunFolder


@dataclass(frozen=True)
class LastSave:
    """A save that was whole when it was looked at.

    Parameters
    ----------
    folder : Path
        Holds config, tokenizer and weights, beside the run's own state.
    step : int
        After which it was made.
    tokens : int
        Trained on until then.
    """

    folder: Path
    step: int
    tokens: int

    def check_unchanged(self) -> None:
        """Refuse what may have been read from two saves: another one came meanwhile."""
        now = _read(self.folder) if self.folder.exists() else None
        if now != self:
            raise Error(
                f"{self.folder}: the save of step {self.step} was replaced while it was read, "
                "expected it to stay; do it again, or wait for the run to end"
            )


def last_save(run: Path) -> LastSave:
    """Find the last save of a run and check that its files are whole; changes nothing.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        There is none yet.
    sluiceway.errors.Corrupt
        A file of it is missing or cut.
    """
    RunFolder.check(run)
    folder = RunFolder(run).checkpoint_path
    if not folder.exists():
        # A kill, or a run that is saving right now, may have left only the one before.
        folder = folder.with_name(f"{folder.name}.old")
    if not folder.exists():
        raise InvalidArgument(
            f"{run}: has no save yet, expected checkpoint/; sluiceway resume {run} makes one"
        )
    return _read(folder)


def _read(folder: Path) -> LastSave:
    from sluiceway.run import checkpoint  # Loads torch, which the refusals above do not need.

    position, _ = checkpoint.load_state(folder)
    return LastSave(folder, position.step, position.tokens)


def config_of_save(folder: Path) -> Config:
    """What a run's last save was made with; without one, what its config.yaml says now."""
    from sluiceway.run.checkpoint import STATE_FILE  # Loads torch.

    for save in ("checkpoint", "checkpoint.old"):
        path = folder / save / STATE_FILE
        try:
            tree = json.loads(path.read_text())["config"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # Whoever loads the save says what is wrong with it.
        return check_config(tree, name=str(path))
    return load_config(folder / CONFIG_FILE)
