"""`sluiceway resume`: continues a run from its last save or commit, or from the save before."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sluiceway.base.atomic import recover_folder
from sluiceway.base.interrupt import Interrupt
from sluiceway.commands.train import print_summary, progress_sink
from sluiceway.config.changes import changes
from sluiceway.config.file import load_config
from sluiceway.config.schema import with_absolute_paths
from sluiceway.run.last_save import has_save, last_save, tell_changes
from sluiceway.run.run_folder import CONFIG_FILE, RunFolder


def resume(
    path: Path, settings: list[str] | None, previous: bool, from_save: bool, as_json: bool
) -> None:
    """Print the changes by `settings`, train to the end, and print the result.

    Parameters
    ----------
    previous : bool
        Continue from the save before the last; drop the last save and all later steps.
    from_save : bool
        Continue from the last save; drop all steps committed after it.
    """
    RunFolder.check(path)
    after = with_absolute_paths(load_config(path / CONFIG_FILE, settings))
    if after.engine.awaits_plan:  # Refuse other changes before planning.
        changes(load_config(path / CONFIG_FILE), after)
        from sluiceway.run.planning import planned

        after = planned(after, path, as_json)
    with Interrupt() as interrupt, contextlib.closing(RunFolder.reopen(path)) as folder:
        recover_folder(folder.checkpoint_path)
        drops_commits = previous or from_save
        commits = after.engine.commits and not drops_commits
        save = last_save(path, previous) if has_save(path) or not commits else None
        if save is not None:
            tell_changes(save.config, after)
        from sluiceway.run.run import Run

        with progress_sink(as_json) as sink:
            summary = Run(after, folder, interrupt, sink).resume(save, drops_commits)
    print_summary(path, summary, as_json)
