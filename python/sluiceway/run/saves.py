"""Writes the saves of a run, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sluiceway import _core
from sluiceway.base.side_thread import run_aside
from sluiceway.engines.engine import BegunSave
from sluiceway.run import checkpoint
from sluiceway.run.checkpoint import Position
from sluiceway.run.run_folder import RunFolder

if TYPE_CHECKING:
    from sluiceway.run.loop import RunContext

_ROW = "saves"
_SECONDS = 1.0  # A wait that takes longer is reported.


class _Writing(NamedTuple):
    """A save while it is written."""

    step: int
    begun: BegunSave
    began_us: float
    ended: Future[float]  # When writing ended, in microseconds.


class Saves:
    """Writes saves while steps run if the engine supports that, else between two steps.

    The end of a `with` block waits for the save under way, also after an Exception of a step, but
    not after a KeyboardInterrupt, such as a second Ctrl-C.

    Parameters
    ----------
    folder : RunFolder
        Its metrics are made durable before a save.
    context : RunContext
        Its timeline gets a range for each save that was written while steps ran.
    side_files : Path
        The model folder, whose tokenizer files are copied.
    extra : dict
        Plain values that saves keep beside the position.
    tell : callable
        Called with the step of a save for which the run waits.
    """

    def __init__(
        self,
        folder: RunFolder,
        context: RunContext,
        side_files: Path,
        extra: dict[str, Any],
        tell: Callable[[int], None],
    ) -> None:
        self._folder, self._context, self._tell = folder, context, tell
        self._beside = (side_files, extra, context.inputs.chat_template)
        self._under_way: _Writing | None = None
        self._last: int | None = None  # Step of the save that was begun last.

    @property
    def is_writing(self) -> bool:
        """True if steps may have to wait for a save that is being written."""
        return self._under_way is not None and not self._under_way.ended.done()

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
        engine, cpu = self._context.engine, self._context.inputs.placement.lane_cpu
        engine.synchronize()
        place = self._folder.checkpoint_path
        writer = partial(checkpoint.writer_of, position, engine, *self._beside)
        if (begun := engine.begin_save()) is None:
            checkpoint.publish(place, writer(engine.save))
        else:
            with contextlib.ExitStack() as undo:
                undo.callback(begun.close)
                write = writer(begun.write)

                def publish() -> float:
                    with contextlib.closing(begun):  # A failed one holds up no step.
                        checkpoint.publish(place, write)
                    return _core.now_us()

                began = _core.now_us()
                ended = run_aside("save", publish, cpu)
                self._under_way = _Writing(position.step, begun, began, ended)
                undo.pop_all()
        self._last = position.step

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
        if not self.is_writing:
            self.finish()

    def finish(self) -> None:
        """Wait for the save under way; raises the errors of `check`."""
        if (writing := self._under_way) is None:
            return
        try:
            if not writing.ended.done():
                self._wait(writing)
            ended_us = writing.ended.result()
        except BaseException:
            self._drop()
            raise
        self._under_way = None
        self._context.timeline.add(_ROW, f"save {writing.step}", writing.began_us, ended_us)

    def _wait(self, writing: _Writing) -> None:
        if not (writing.begun.finish(_SECONDS) and wait([writing.ended], _SECONDS).done):
            self._tell(writing.step)
            writing.begun.finish()

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
