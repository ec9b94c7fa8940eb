"""Finds and checks the last save of a run; if it is damaged, suggests the save before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.base.atomic import is_half_moved, older_folder
from sluiceway.config.changes import changes
from sluiceway.config.file import check_config, load_config
from sluiceway.config.schema import Config
from sluiceway.errors import Corrupt, Error, InvalidArgument
from sluiceway.run.run_folder import CONFIG_FILE, RunFolder

if TYPE_CHECKING:
    from sluiceway.engines.engine import Engine
    from sluiceway.run.checkpoint import Position


@dataclass(frozen=True)
class LastSave:
    """A save that was complete when it was checked."""

    folder: Path  # Holds config, tokenizer and weights, beside the run's own state.
    position: Position
    state: dict[str, Any]  # All other values that the save keeps beside the position.
    manifest: bytes  # Bytes of the file that holds position and state.

    @property
    def step(self) -> int:
        """Step after which the save was made."""
        return self.position.step

    @property
    def config(self) -> Config:
        """Config of the save; if it has none, the run's config.yaml."""
        if "config" in self.state:
            return check_config(self.state["config"], name=str(self.folder))
        return load_config(self.folder.parent / CONFIG_FILE)

    def engine(self) -> Engine:
        """Make the engine of the save, not opened, with default paths in the run folder."""
        from sluiceway.engines import engine_of

        config = self.config
        return engine_of(config.engine.in_folder(config, self.folder.parent))

    def check_unchanged(self) -> None:
        """Refuse the save if another one has replaced it, as values read may come from both."""
        _check_same(self.folder, self.manifest)


def has_save(run: Path) -> bool:
    """True if the run has a save."""
    place = RunFolder(run).checkpoint_path
    return place.exists() or older_folder(place).exists()


def tell_changes(before: Config, after: Config) -> None:
    """Print what a resume changes.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        A change would make it another run.
    """
    for key, (was, now) in changes(before, after).items():
        print(f"sluiceway: {key} was {was}, is now {now}", file=sys.stderr)


def last_save(run: Path, previous: bool = False) -> LastSave:
    """Find the last save of a run and check that its files are complete; changes nothing.

    Parameters
    ----------
    previous : bool
        Find the save before the last.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        There is no such save.
    sluiceway.errors.Corrupt
        A file of the save differs from the file that was written; the text says how to continue.
    """
    RunFolder.check(run)
    folder = RunFolder(run).checkpoint_path
    older = older_folder(folder)
    if previous and not older.exists():
        raise InvalidArgument(
            f"--previous: {run} has no save before the last, expected {older.name}/; resume "
            "without --previous"
        )
    if previous or is_half_moved(folder):  # By a kill, or by a run that is saving right now.
        return _checked(older, lambda: _begin_again(run))
    if not folder.exists():
        hint = _way_on(run) if older.exists() else _without_save(run)
        raise InvalidArgument(f"{run}: has no save, expected {folder.name}/; {hint}")
    return _checked(folder, lambda: _way_on(run))


def _checked(folder: Path, way_on: Callable[[], str]) -> LastSave:
    from sluiceway.run import checkpoint  # Loads torch, which the refusals above do not need.

    manifest = _manifest(folder)
    try:
        position, state = checkpoint.load_state(folder)
    except Corrupt as error:
        _check_same(folder, manifest)
        raise Corrupt(f"{error}; {way_on()}") from None
    if state["format"] == checkpoint.WITHOUT_SUMS:
        print(
            f"sluiceway: {folder}: saved without checksums (format {state['format']}), only the "
            "lengths of its files were checked",
            file=sys.stderr,
        )
    return LastSave(folder, position, state, manifest)


def _check_same(folder: Path, manifest: bytes) -> None:
    if _manifest(folder) != manifest:
        raise Error(
            f"{folder}: was replaced while it was read, expected it to stay; repeat the command, "
            "or wait for the run to end"
        ) from None


def _manifest(folder: Path) -> bytes:
    from sluiceway.run.checkpoint import STATE_FILE

    path = folder / STATE_FILE
    return path.read_bytes() if path.is_file() else b""


def _way_on(run: Path) -> str:
    """Say how to continue without the last save."""
    older = older_folder(RunFolder(run).checkpoint_path)
    if not older.exists():
        return f"there is none before it; {_begin_again(run)}"
    from sluiceway.run import checkpoint

    try:
        position, _ = checkpoint.load_state(older)
    except Corrupt:
        return f"nor is the save before it whole; {_begin_again(run)}"
    return (
        f"the save before it, of step {position.step}, is whole, and this goes on from it: "
        f"sluiceway resume {run} --previous"
    )


def _without_save(run: Path) -> str:
    """Say how to continue a run that was never saved."""
    folder = RunFolder(run)
    steps = folder.metrics_path.is_file() and folder.length_until(sys.maxsize)[1]
    if steps and load_config(run / CONFIG_FILE).engine.commits:
        return f"its store has its steps, and this goes on from the last: sluiceway resume {run}"
    return f"{'wait for one, or ' if folder.is_held() else ''}{_begin_again(run)}"


def _begin_again(run: Path) -> str:
    return f"begin again in a new folder: sluiceway train {run / CONFIG_FILE} --out NEW_FOLDER"
