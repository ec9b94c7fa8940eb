"""`sluiceway train` and `resume`: begin a run from a config, or continue one from a save."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from sluiceway.base.atomic import recover_folder
from sluiceway.base.interrupt import Interrupt
from sluiceway.base.json_text import json_text
from sluiceway.config.changes import changes
from sluiceway.config.file import load_config
from sluiceway.config.schema import with_absolute_paths
from sluiceway.errors import Unavailable
from sluiceway.run.last_save import has_save, last_save, tell_changes
from sluiceway.run.progress import LastingOutput
from sluiceway.run.run_folder import CONFIG_FILE, RunFolder


def train(
    config: Path, out: Path | None, settings: list[str] | None, dry_run: bool, as_json: bool
) -> None:
    """Train, or only plan; print the result."""
    checked = with_absolute_paths(load_config(config, settings))
    _refuse_several_processes()
    if dry_run:
        from sluiceway.commands.plan import show_plan

        show_plan(checked, as_json, reads_data=True)
        return
    path = out or Path("runs") / f"{config.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    RunFolder.check_new(path)
    with Interrupt() as interrupt:
        from sluiceway.run.checkpoint import check_if_save
        from sluiceway.run.run import Run
        from sluiceway.run.session import read_inputs, with_steps

        check_if_save(Path(checked.model.path))
        inputs = read_inputs(checked, Path(checked.model.path))
        checked = with_steps(checked, inputs)
        if checked.engine.awaits_plan:
            from sluiceway.run.planning import planned

            checked = planned(checked, path, as_json)
        folder = RunFolder.create(path, checked)
        try:
            with _progress_sink(as_json) as sink:
                summary = Run(checked, folder, interrupt, sink).train(inputs)
        except BaseException:
            folder.discard_if_unused()
            raise
        finally:
            folder.close()
    _print_summary(path, summary, as_json)


def _refuse_several_processes() -> None:
    count = os.environ.get("WORLD_SIZE", "1")
    if count.isdecimal() and int(count) > 1:
        raise Unavailable(
            f"a launcher started {count} processes (WORLD_SIZE), but the command line trains in "
            "one; train with transformers' Trainer or a loop of your own, as docs/distributed.md "
            "shows"
        )


def resume(
    path: Path, settings: list[str] | None, previous: bool, from_save: bool, as_json: bool
) -> None:
    """Print the changes by `settings`, train to the end, and print the result.

    `previous` continues from the save before the last, and drops the last one and all later steps.
    `from_save` continues from the last save, and drops all steps that a store committed after it.
    """
    RunFolder.check(path)
    _refuse_several_processes()
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

        with _progress_sink(as_json) as sink:
            summary = Run(after, folder, interrupt, sink).resume(save, drops_commits)
    _print_summary(path, summary, as_json)


@contextlib.contextmanager
def _progress_sink(as_json: bool) -> Iterator[TextIO | LastingOutput]:
    """Yield the stream for progress, which discards it if the output is JSON."""
    if not as_json:
        yield LastingOutput(sys.stdout)
        return
    with open(os.devnull, "w") as nowhere:
        yield nowhere


def _print_summary(path: Path, summary: dict[str, Any], as_json: bool) -> None:
    """Print the result of a run, as a line or as JSON."""
    if as_json:
        print(json_text({"folder": str(path), **summary}))
        return
    ratio = summary.get("native_ratio")
    held_out, first = summary.get("final_eval_loss"), summary.get("first_eval_loss")
    parts = [f"{path}: {summary['steps']} steps"]
    if summary.get("stopped_early"):
        parts[0] += ", stopped early"
    if summary.get("final_loss") is not None:
        parts.append(f"loss {summary['final_loss']:.4f}")
    if held_out is not None and first is not None:
        parts.append(f"held-out loss {first:.4f} to {held_out:.4f}")
    if summary["keeps_best"] and summary["best_step"]:
        best = f"{summary['best_eval_loss']:.4f} at step {summary['best_step']}"
        parts.append(f"lowest {best}, in {RunFolder(path).best_path}")
    elif summary["keeps_best"]:
        parts.append("no step was lower than the start, so there is no best model")
    if ratio is not None:
        parts.append(f"{ratio:.3f} x native per step")
    if summary["data"]["replaced_bytes"]:
        parts.append(f"{summary['data']['replaced_bytes']} bytes were not UTF-8")
    if summary["parameters"]["frozen_names"]:
        parts.append("frozen: " + ", ".join(summary["parameters"]["frozen_names"][:3]))
    print(", ".join(parts))
