"""Runs one training from beginning to end: compare, train, save, sum up, resume."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from sluiceway.base.atomic import go_back
from sluiceway.base.interrupt import Interrupt, Interrupted
from sluiceway.config.file import check_config
from sluiceway.config.schema import Config
from sluiceway.engines import native_twin
from sluiceway.engines.engine import Engine
from sluiceway.errors import Corrupt, Error, InvalidArgument, IoError
from sluiceway.machine.placement import denormals
from sluiceway.run import checkpoint
from sluiceway.run.checkpoint import Position, RunState, packed, unpacked
from sluiceway.run.export import write_best
from sluiceway.run.held_out import check_apart, check_next_token
from sluiceway.run.last_save import LastSave, tell_changes
from sluiceway.run.loop import Loop, RunContext, is_over
from sluiceway.run.progress import Progress
from sluiceway.run.run_folder import COMPARISON, RunFolder
from sluiceway.run.saves import Saves
from sluiceway.run.session import (
    Inputs,
    open_context,
    read_inputs,
    with_steps,
)
from sluiceway.run.step_figures import Diverged, check_converged
from sluiceway.run.summary import describe_parameters, summarise
from sluiceway.run.trackers import Trackers
from sluiceway.store.drives import find_drives
from sluiceway.text.batches import describe_length, describe_sequences


class Run:
    """A run folder and the training in it.

    Parameters
    ----------
    interrupt : Interrupt
        Entered by the caller, who turns its exceptions into exit codes.
    out : TextIO
        Where progress goes.
    """

    def __init__(
        self, config: Config, folder: RunFolder, interrupt: Interrupt, out: TextIO = sys.stdout
    ) -> None:
        self._config = config
        self._folder = folder
        self._interrupt = interrupt
        self._out = out

    def train(self, inputs: Inputs | None = None) -> dict[str, Any]:
        """Train from the initial model to the last step; return the summary."""
        source = Path(self._config.model.path)
        inputs = inputs or self._read_inputs(source)
        return self._go(inputs, source, Position(), begins=True)

    def _read_inputs(self, source: Path) -> Inputs:
        """Read the inputs, and count the steps of `train.epochs`."""
        inputs = read_inputs(self._config, source)
        self._config = with_steps(self._config, inputs)
        return inputs

    def resume(self, save: LastSave | None, drops_commits: bool = False) -> dict[str, Any]:
        """Train from a save of this folder or a later commit to the last step; return the summary.

        Parameters
        ----------
        save : LastSave or None
            None: the run has no save, and the engine commits steps.
        drops_commits : bool
            Continue from the save, and drop commits after it.
        """
        source = Path(self._config.model.path) if save is None else save.folder
        position = Position() if save is None else save.position
        inputs = self._read_inputs(source)
        if save is None:
            self._check_store()
        self._check_steps(position, "save")
        if save is not None:
            self._check_data(save.state, inputs)
        return self._go(inputs, source, position, save, drops_commits=drops_commits)

    def _check_store(self) -> None:
        """Refuse to begin again if the run has made steps and its store is missing."""
        _, last = self._folder.length_until(self._config.train.steps)
        if not last:
            return
        try:
            find_drives([*map(Path, self._placed.store.paths)])
        except (IoError, InvalidArgument) as error:
            raise InvalidArgument(
                f"{self._folder.path}: has made {last} steps and was never saved, and {error}; "
                "restore the store, or begin again in a new folder"
            ) from None

    @property
    def _placed(self) -> Config:
        """The config, with default paths inside the run's folder."""
        return self._config.engine.in_folder(self._config, self._folder.path)

    def _check_steps(self, position: Position, what: str) -> None:
        if position.step > self._config.train.steps:
            raise InvalidArgument(
                f"{self._folder.path}: train.steps is {self._config.train.steps}, expected at "
                f"least {position.step}, the step of the last {what}"
            )

    def _check_data(self, extra: dict[str, Any], inputs: Inputs) -> None:
        if extra["data"] != inputs.fingerprint:
            raise InvalidArgument(
                f"{self._folder.path}: the data has changed since the run began (tokens "
                f"{inputs.fingerprint}, expected {extra['data']}); restore the files"
            )

    def _go(
        self,
        inputs: Inputs,
        source: Path,
        position: Position,
        save: LastSave | None = None,
        begins: bool = False,
        drops_commits: bool = False,
    ) -> dict[str, Any]:
        # A run that is over makes no step, and keeps its trace.
        unfinished = not is_over(self._config.train, position)
        kind = self._config.engine.kind
        found = describe_sequences(self._config.data, inputs.counts)
        self._say(kind, [*found, describe_length(self._config.train, inputs.train)])
        with contextlib.ExitStack() as stack:
            stack.enter_context(denormals(self._config, inputs.placement))
            # A resume may have changed it; a run that makes no step keeps the config of its steps.
            changed = self._folder.changed_config(self._config)
            with changed if unfinished else contextlib.nullcontext():
                keep, last = self._lines_until(position)
                native = self._native(inputs) if self._config.compare == "native" else None
                context = self._open(inputs, source, save, trace=unfinished)
                stack.enter_context(_closing(context))
                if begins:
                    self._check_begins(context)
                looks = not (begins or drops_commits)
                later = self._later_commit(context.engine, save, inputs) if looks else None
                if later is not None:
                    position = later.position
                    keep, last = self._lines_until(position)
                    self._take_up(later, context.engine, save)
                elif save is not None:
                    checkpoint.load_into(source, context.engine)
                    source = self._take_the_place_of_the_last(source)
                    if unfinished:
                        self._say(kind, [f"goes on from step {position.step}, that of its save"])
                if position.step and last != position.step:
                    what = "save" if later is None else "commit"
                    _tell_gap(self._folder.metrics_path, last, what, position.step)
                self._folder.cut_back(keep)
            if not unfinished:
                print(
                    f"sluiceway: {self._folder.path}: is complete; --set train.steps or "
                    "train.epochs makes it go on",
                    file=sys.stderr,
                )
            saved = None if save is None else save.step
            return self._train(context, position, native, source, saved)

    def _lines_until(self, position: Position) -> tuple[int, int | None]:
        # At step 0 the line before the first step is written again.
        return self._folder.length_until(position.step or -1)

    def _check_begins(self, context: RunContext) -> None:
        engine = context.engine
        if self._config.engine.commits:
            engine.check_new()
        data = self._config.data
        check_next_token(context.model, engine.losses, data.sequence_length)
        if data.packing == "apart":
            check_apart(context.model, engine.losses, data.sequence_length)
        engine.take_evaluation_bytes()

    def _later_commit(
        self, engine: Engine, save: LastSave | None, inputs: Inputs
    ) -> RunState | None:
        """Read the state that the engine committed after the save, without restoring it."""
        if not self._config.engine.commits:
            return None
        if (run := engine.committed_run(None if save is None else save.folder)) is None:
            return None
        later = unpacked(run)
        self._check_steps(later.position, "commit")
        self._check_identity(later)
        self._check_data(later.extra, inputs)
        committed = check_config(later.extra["config"], name=str(self._folder.path))
        if save is None or committed != save.config:
            tell_changes(committed, self._config)
        since = "there is no save" if save is None else f"the last save is of step {save.step}"
        print(
            f"sluiceway: {self._folder.path}: goes on from step {later.position.step}, the last "
            f"that was committed; {since}",
            file=sys.stderr,
        )
        return later

    def _check_identity(self, later: RunState) -> None:
        """Refuse a commit that another run has made to this run's store."""
        run, ours = later.extra.get("run"), self._folder.identity
        if None not in (run, ours) and run != ours:
            raise InvalidArgument(
                f"{self._folder.path}: {self._placed.store.place} holds step "
                f"{later.position.step} of another run; bring this run's drives back, or go on "
                f"from its last save: sluiceway resume {self._folder.path} --last-save"
            )

    def _take_up(self, later: RunState, engine: Engine, save: LastSave | None) -> None:
        try:
            engine.take_commit()
        except Corrupt as error:
            if save is None:
                raise
            raise Corrupt(
                f"{error}; the save of step {save.step} is whole. Go on from it: "
                f"sluiceway resume {self._folder.path} --last-save"
            ) from None
        later.put_back(engine)

    def _take_the_place_of_the_last(self, source: Path) -> Path:
        """Make an older save the last one, and return its new place."""
        place = self._folder.checkpoint_path
        if source != place:
            try:
                go_back(place)
            except OSError as error:
                text = f"{source}: cannot take the place of {place.name}, {error.strerror}"
                raise IoError(text, error.errno, str(source)) from None
        return place

    def _open(
        self, inputs: Inputs, source: Path, save: LastSave | None = None, trace: bool = True
    ) -> RunContext:
        path = self._folder.trace_path if self._config.trace and trace else None
        config = self._placed
        if save is not None:
            settled = config.engine.settled(save.state.get("settled", {}))
            config = config.model_copy(update={"engine": settled})
        return open_context(config, inputs, source, path)

    def _train(
        self,
        context: RunContext,
        position: Position,
        native: dict[str, Any] | None,
        source: Path,
        saved: int | None,
    ) -> dict[str, Any]:
        extra = self._extra(context)

        def note() -> None:
            context.engine.note_run(packed(position, context.engine, extra))

        def watch(line: dict[str, Any]) -> None:
            self._folder.append(line)
            progress(line)
            trackers(line)

        def sum_up(status: str) -> dict[str, Any]:
            lines = self._folder.lines()
            return summarise(self._config, context, position, lines, status, native)

        seconds = native.get("median_step_seconds") if native else None
        kind, steps = self._config.engine.kind, self._config.train.steps
        noting = note if self._config.engine.commits else None
        keep = partial(write_best, self._folder, self._placed, position)
        self._say(kind, [describe_parameters(context.model), *context.engine.description()])
        place = self._folder.checkpoint_path
        with (
            Progress(kind, steps, seconds, self._out) as progress,
            Saves(self._folder, context, source, extra, progress.saving) as saves,
            Trackers(self._folder.path, self._config) as trackers,
        ):
            context.engine.watch_calibration(progress.calibrating)
            try:
                given = (self._config, context, position, self._interrupt, watch, saves)
                Loop(*given, noting, keep if self._config.train.keep_best else None).run()
                if position.step != saved or not place.exists():
                    saves.complete(position)
                check_converged(self._folder.lines())
            except (Interrupted, Error) as error:
                with contextlib.suppress(IoError):  # The disk may be full; `error` may say so.
                    self._folder.write_summary(sum_up(_status(error)))
                if isinstance(error, Interrupted):
                    raise Interrupted(str(self._folder.path)) from None
                raise
        summary = sum_up("done")
        self._folder.write_summary(summary)
        return summary

    def _extra(self, context: RunContext) -> dict[str, Any]:
        """Plain values that saves and commits keep beside the position."""
        settled = context.engine.settled()
        return {
            "data": context.inputs.fingerprint,
            "config": self._config.resolved(),
            "run": self._folder.identity,
            **({"settled": settled} if settled else {}),
        }

    def _say(self, title: str, texts: Iterable[str]) -> None:
        """Print the first lines of a run, which describe its data and its engine."""
        for text in texts:
            print(f"{title}: {text}", file=self._out, flush=True)

    def _native(self, inputs: Inputs) -> dict[str, Any]:
        """Run plain AdamW on the same data in a folder inside this one, or use its finished run."""
        path = self._folder.path / COMPARISON
        done = RunFolder(path).read_summary()
        if done is not None and done["status"] == "done":
            return done
        shutil.rmtree(path, ignore_errors=True)
        config = native_twin(self._config)
        with contextlib.closing(RunFolder.create(path, config)) as folder:
            run = Run(config, folder, self._interrupt, self._out)
            try:
                return run._measure(inputs)
            except Diverged as error:
                raise Diverged(f"{path}: {error}") from None

    def _measure(self, inputs: Inputs) -> dict[str, Any]:
        """Train without saving: a comparison is repeated, not resumed."""
        context, position = self._open(inputs, Path(self._config.model.path)), Position()
        title = f"{self._config.engine.kind} (to compare)"
        self._say(title, context.engine.description())
        with (
            _closing(context),
            Progress(title, self._config.train.steps, out=self._out) as progress,
        ):

            def watch(line: dict[str, Any]) -> None:
                self._folder.append(line)
                progress(line)

            Loop(self._config, context, position, self._interrupt, watch, None).run()
            lines = self._folder.lines()
            check_converged(lines)
            summary = summarise(self._config, context, position, lines, "done", None)
        self._folder.write_summary(summary)
        return summary


def _tell_gap(metrics: Path, last: int | None, what: str, step: int) -> None:
    ends = "has no line" if last is None else f"ends with step {last}"
    print(
        f"sluiceway: {metrics}: {ends}, but the {what} is of step {step}; the run goes on, and its "
        "figures lack the steps between",
        file=sys.stderr,
    )


def _status(error: Interrupted | Error) -> str:
    if isinstance(error, Interrupted):
        return "interrupted"
    return "diverged" if isinstance(error, Diverged) else "failed"


@contextlib.contextmanager
def _closing(context: RunContext):
    """Close the engine and write the trace; let an earlier error through."""
    try:
        yield
    except BaseException:
        for end in (context.engine.close, context.timeline.write):
            with contextlib.suppress(Error):
                end()
        raise
    context.engine.close()
    context.timeline.write()
