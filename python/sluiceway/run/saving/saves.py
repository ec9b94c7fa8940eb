"""Writes the saves of a run, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from sluiceway import _core
from sluiceway.engines.engine import BegunSave, Engine
from sluiceway.run import checkpoint
from sluiceway.run.checkpoint import Position
from sluiceway.run.run_folder import RunFolder
from sluiceway.run.saving.side_thread import SideThread
from sluiceway.run.timeline import Timeline

_ROW = "saves"
_SECONDS = 1.0  # A wait that takes longer is reported.


class Saves:
    """Writes saves while steps run if the engine supports that, else between two steps.

    The end of a `with` block waits for the save under way, also after an Exception of a step, but
    not after a KeyboardInterrupt, such as a second Ctrl-C.

    Parameters
    ----------
    folder : RunFolder
        Its metrics are made durable before a save.
    engine : Engine
    side_files : Path
        The model folder, whose tokenizer files are copied.
    extra : dict
        Plain values that saves keep beside the position.
    timeline : Timeline
        Gets a range for each save that was written while steps ran.
    tell : callable
        Called with the step of a save for which the run waits.
    cpu : int or None
        Processor of the thread that writes while steps run.
    chat_template : str or None
        Takes the place of the tokenizer's in saves; None: the tokenizer's stays.
    """

    def __init__(
        self,
        folder: RunFolder,
        engine: Engine,
        side_files: Path,
        extra: dict[str, Any],
        timeline: Timeline,
        tell: Callable[[int], None],
        cpu: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._folder, self._engine = folder, engine
        self._beside = (side_files, extra, chat_template)
        self._timeline, self._tell, self._cpu = timeline, tell, cpu
        self._under_way: _Writing | None = None
        self._last: int | None = None  # Step of the save that was begun last.

    @property
    def is_writing(self) -> bool:
        """True if steps may have to wait for a save that is being written."""
        return self._under_way is not None and self._under_way.aside.is_running

    @property
    def is_under_way(self) -> bool:
        """True if a save was begun that `check` or `finish` has not ended yet."""
        return self._under_way is not None

    def begin(self, position: Position) -> None:
        """Save the run as it is between two steps, after the save under way has ended.

        Raises
        ------
        sluiceway.errors.IoError, sluiceway.errors.Corrupt
            The save under way, or this one, could not be written; the save before it is untouched.
        """
        self.finish()
        self._folder.sync_metrics()
        engine = self._engine
        engine.synchronize()
        place = self._folder.checkpoint_path
        with contextlib.ExitStack() as undo:
            begun = engine.begin_save()
            if begun is None:
                checkpoint.save(place, position, engine, *self._beside)
                self._last = position.step
                return
            undo.callback(begun.close)
            write = checkpoint.writer_of(position, engine, *self._beside, begun.write)
            publish = partial(checkpoint.publish, place, write)
            self._under_way = _Writing(position.step, begun, publish, self._cpu)
            self._last = position.step
            undo.pop_all()

    def complete(self, position: Position) -> None:
        """Save this step unless the last save is of it, and wait; raises the errors of `begin`."""
        if self._last != position.step:
            self.begin(position)
        self.finish()

    def check(self) -> None:
        """Note that a save has ended, if it has.

        Raises
        ------
        sluiceway.errors.IoError, sluiceway.errors.Corrupt
            The save could not be written; the save before it is untouched.
        """
        if self._under_way is not None:
            self._ended(lambda writing: writing.aside.wait(0))

    def finish(self) -> None:
        """Wait for the save under way; raises the errors of `check`."""
        if self._under_way is not None:
            self._ended(self._wait)

    def _wait(self, writing: _Writing) -> bool:
        if not (writing.begun.finish(_SECONDS) and writing.aside.wait(_SECONDS)):
            self._tell(writing.step)
            writing.begun.finish()
        return writing.aside.wait()

    def _ended(self, wait: Callable[[_Writing], bool]) -> None:
        writing = self._under_way
        try:
            if not wait(writing):
                return
        except BaseException:
            self._drop()
            raise
        self._under_way = None
        self._timeline.add(_ROW, f"save {writing.step}", writing.began_us, writing.ended_us)

    def _drop(self) -> None:
        self._under_way.begun.close()
        self._under_way = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        elif issubclass(kind, Exception):
            with contextlib.suppress(Exception):  # Let the earlier error through.
                self.finish()
        elif self._under_way is not None:
            self._drop()


class _Writing:
    """A save while it is written."""

    def __init__(
        self, step: int, begun: BegunSave, publish: Callable[[], None], cpu: int | None
    ) -> None:
        self.step, self.begun = step, begun
        self.began_us = self.ended_us = _core.now_us()
        self._publish = publish
        self.aside = SideThread("save", self._run, cpu)

    def _run(self) -> None:
        try:
            self._publish()
        finally:
            self.begun.close()  # A failed one holds up no step.
            self.ended_us = _core.now_us()
