"""One run from beginning to end: compare, train, save, sum up; and how it is taken up again."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from sluiceway.base.atomic import recover_folder
from sluiceway.base.interrupt import Interrupt, Interrupted
from sluiceway.config.schema import Config
from sluiceway.engines import native_twin
from sluiceway.engines.protocol import Calibrates
from sluiceway.errors import Error, InvalidArgument, IoError
from sluiceway.machine.placement import denormals
from sluiceway.run import checkpoint
from sluiceway.run.checkpoint import Position
from sluiceway.run.loop import Loop, Workshop
from sluiceway.run.progress import Progress
from sluiceway.run.run_folder import COMPARISON, RunFolder
from sluiceway.run.session import Inputs, open_workshop, read_inputs, seed_everything
from sluiceway.run.summary import summarise


class Run:
    """A run folder and what goes on in it.

    Parameters
    ----------
    interrupt : Interrupt
        Entered by the caller, who turns what it raises into an exit code.
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
        """Train from the last save, or from the model, to the end; return the summary."""
        saved = recover_folder(self._folder.checkpoint_path)
        source = self._folder.checkpoint_path if saved else Path(self._config.model.path)
        position, state = checkpoint.load_state(source) if saved else (Position(), {})
        if position.step > self._config.train.steps:
            raise InvalidArgument(
                f"{self._folder.path}: train.steps is {self._config.train.steps}, but the last "
                f"save is of step {position.step}; expected that or more"
            )
        inputs = inputs or read_inputs(self._config, source)
        if saved and state["data"] != inputs.fingerprint:
            raise InvalidArgument(
                f"{self._folder.path}: the data is not what the run was begun with (tokens "
                f"{inputs.fingerprint}, expected {state['data']}); put the files back"
            )
        # A run that is over takes no step, and its trace stays.
        unfinished = position.step < self._config.train.steps
        with contextlib.ExitStack() as stack:
            stack.enter_context(denormals(self._config, inputs.placement))
            with self._folder.changed_config(self._config):  # A resume may bring another one.
                # At step 0 the line before the first step is written again, too.
                self._folder.cut_back(position.step or -1)
                native = self._native(inputs) if self._config.compare == "native" else None
                shop = self._open(inputs, source, trace=unfinished)
                stack.enter_context(_closing(shop))
                if saved:
                    checkpoint.load_into(source, shop.engine)
            return self._train(inputs, shop, position, native, source)

    def _open(self, inputs: Inputs, source: Path, trace: bool = True) -> Workshop:
        path = self._folder.trace_path if self._config.trace and trace else None
        shop = open_workshop(self._config, inputs, source, path)
        seed_everything(self._config.train.seed)  # What loading drew is not part of a run.
        return shop

    def _train(
        self,
        inputs: Inputs,
        shop: Workshop,
        position: Position,
        native: dict[str, Any] | None,
        source: Path,
    ) -> dict[str, Any]:
        def save() -> None:
            self._folder.sync_metrics()
            checkpoint.save(
                self._folder.checkpoint_path,
                position,
                shop.engine,
                source,
                {"data": inputs.fingerprint, "config": self._config.resolved()},
            )

        def watch(line: dict[str, Any], at: Position) -> None:
            self._folder.append(line)
            progress(line, at)

        def sum_up(status: str) -> dict[str, Any]:
            lines = self._folder.lines()
            return summarise(self._config, inputs, shop, position, lines, status, native)

        seconds = native.get("median_step_seconds") if native else None
        kind, steps = self._config.engine.kind, self._config.train.steps
        unfinished = position.step < steps
        for text in shop.engine.description():
            print(f"{kind}: {text}", file=self._out, flush=True)
        with Progress(kind, steps, seconds, self._out) as progress:
            if isinstance(shop.engine, Calibrates):
                shop.engine.watch_calibration(progress.calibrating)
            try:
                Loop(self._config, shop, position, self._interrupt, watch, save).run()
                if unfinished or not self._folder.checkpoint_path.exists():
                    save()
            except (Interrupted, Error) as error:
                status = "interrupted" if isinstance(error, Interrupted) else "failed"
                with contextlib.suppress(IoError):  # As of a full disk, which `error` may be about.
                    self._folder.write_summary(sum_up(status))
                raise
        summary = sum_up("done")
        self._folder.write_summary(summary)
        return summary

    def _native(self, inputs: Inputs) -> dict[str, Any]:
        """Plain AdamW over the same data, in a run folder inside this one; kept if it is done."""
        path = self._folder.path / COMPARISON
        done = RunFolder(path).read_summary()
        if done is not None and done["status"] == "done":
            return done
        shutil.rmtree(path, ignore_errors=True)
        config = native_twin(self._config)
        with contextlib.closing(RunFolder.create(path, config)) as folder:
            run = Run(config, folder, self._interrupt, self._out)
            return run._measure(inputs)

    def _measure(self, inputs: Inputs) -> dict[str, Any]:
        """Train without saving: a comparison is repeated, not resumed."""
        shop, position = self._open(inputs, Path(self._config.model.path)), Position()
        title = f"{self._config.engine.kind} (to compare)"
        with _closing(shop), Progress(title, self._config.train.steps, out=self._out) as progress:

            def watch(line: dict[str, Any], at: Position) -> None:
                self._folder.append(line)
                progress(line, at)

            Loop(self._config, shop, position, self._interrupt, watch, None).run()
            lines = self._folder.lines()
            summary = summarise(self._config, inputs, shop, position, lines, "done", None)
        self._folder.write_summary(summary)
        return summary


@contextlib.contextmanager
def _closing(shop: Workshop):
    """Close the engine and write the trace; an error that is on its way is not hidden."""
    try:
        yield
    except BaseException:
        for end in (shop.engine.close, shop.timeline.write):
            with contextlib.suppress(Error):
                end()
        raise
    shop.engine.close()
    shop.timeline.write()
