"""`sluiceway resume`: a run goes on from its last save."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from sluiceway.base.interrupt import Interrupt
from sluiceway.commands.train import print_summary, progress_sink
from sluiceway.config.changes import changes
from sluiceway.config.file import load_config
from sluiceway.config.schema import with_absolute_paths
from sluiceway.run.last_save import config_of_save
from sluiceway.run.run_folder import CONFIG_FILE, RunFolder


def resume(path: Path, settings: list[str] | None, as_json: bool) -> None:
    """Say what `settings` change, train to the end, and print what it came to."""
    RunFolder.check(path)
    after = with_absolute_paths(load_config(path / CONFIG_FILE, settings))
    for key, (was, now) in changes(config_of_save(path), after).items():
        print(f"sluiceway: {key} was {was}, is now {now}", file=sys.stderr)
    with Interrupt() as interrupt, contextlib.closing(RunFolder.reopen(path)) as folder:
        from sluiceway.run.run import Run

        with progress_sink(as_json) as sink:
            summary = Run(after, folder, interrupt, sink).train()
    print_summary(path, summary, as_json)
