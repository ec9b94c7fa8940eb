"""The compiled engine of a run, and the log that it writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluiceway import _core
from sluiceway.base.atomic import replace_file
from sluiceway.errors import Corrupt, InvalidArgument
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.tier_limits import tier_limits
from sluiceway.optim.zo.host.base import Base
from sluiceway.optim.zo.host.log_folder import LOG, LogFolder
from sluiceway.optim.zo.tier import Training


class StreamingEngine:
    """A compiled engine that streams weights, until it is closed.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._engine: Any = None

    @property
    def is_open(self) -> bool:
        """Tell whether the engine is open."""
        return self._engine is not None

    def get(self) -> Any:
        """Return the engine.

        Raises
        ------
        InvalidArgument
            The engine is closed.
        """
        if self._engine is None:
            raise InvalidArgument(f"{self._owner}: the optimizer is closed; make a new one")
        return self._engine

    def close(self) -> None:
        """Close the engine."""
        self._engine = None


class LoggedEngine(StreamingEngine):
    """A compiled engine with its log, open until `close`.

    Parameters
    ----------
    training : Training
    base : Base
        The base that the log belongs to.

    Raises
    ------
    InvalidArgument, IoError, Corrupt, Unavailable
        The log belongs to another base or other options, or the file is not a log.
    """

    def __init__(self, training: Training, base: Base) -> None:
        super().__init__(training.owner)
        self._of, self._base = training, base
        self._folder = LogFolder(base.log_folder)
        self._engine = self._open()

    def _open(self) -> _core.ZoEngine:
        if self._of.takes_directions and self._folder.log.exists():
            self._of.take_directions(_core.zo_log_directions(os.fspath(self._folder.log)))
        engine = _core.ZoEngine(
            mode="log",
            log=os.fspath(self._folder.log),
            **streaming_arguments(self._of),
            **self._base.engine_arguments(),
            **self._low_rank(),
        )
        trace = self._of.options.trace
        engine.enable_trace(trace is not None, os.fspath(trace or ""))
        return engine

    def _low_rank(self) -> dict[str, Any]:
        options = self._of.options
        if options.noise != "lowrank":
            return {"rank": 0, "period": 0, "trained": []}
        trained = []
        with torch_private.asking_no_class():
            for w in self._of.weights:  # For a matrix the engine needs the shape alone.
                p = w.parameter
                trained.append((w.name, p.detach() if p.dim() >= 2 else self._base.of(p), w.group))
        return {"rank": options.rank, "period": options.period, "trained": trained}

    def close(self) -> None:
        """Close engine and log, and delete a temporary log."""
        super().close()
        self._folder.close()

    # ---- The log ----

    def branch(self, step: int, path: str | os.PathLike) -> None:
        """Write a new log for the same base, with the steps up to `step`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.get().branch(step, os.fspath(folder / LOG))

    def saved(self) -> dict[str, Any]:
        """Return everything that a new optimizer with the same base needs."""
        engine = self.get()
        engine.sync()
        return {
            **self._base.identity(),
            "step": engine.next_step,
            "log_id": engine.log_id,
            "log": self._folder.log.read_bytes(),
            "entries": engine.entries,
        }

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Check that a state belongs to this base, and to this log or to an empty one.

        Raises
        ------
        InvalidArgument
            It belongs to another base or log; the text names both.
        """
        engine = self.get()
        self._base.check_saved(saved)
        same = saved["log_id"] == engine.log_id
        if same and not self._is_of_one_history(saved["log"]):
            raise InvalidArgument(
                f"load_state_dict: the state's log and the log in {self._folder.path} begin alike "
                "but continue differently; make the optimizer with an empty folder as path"
            )
        if engine.entries and not same:
            raise InvalidArgument(
                f"load_state_dict: the state has log {saved['log_id']}, but {self._folder.path} "
                f"has log {engine.log_id} with {engine.entries} entries; make the optimizer with "
                "an empty folder as path"
            )

    def _is_of_one_history(self, log: bytes) -> bool:
        self.get().sync()
        here = self._folder.log.read_bytes()
        both = min(len(here), len(log))
        return here[:both] == log[:both]

    def load(self, saved: dict[str, Any], opened: Callable[[], None]) -> None:
        """Continue from a checked state; `opened` is called if the engine was replaced.

        Raises
        ------
        Corrupt
            The state's log is incomplete; nothing was changed.
        """
        engine = self.get()
        if engine.log_id != saved["log_id"] or engine.entries < saved["entries"]:
            del engine
            self._replace(saved, opened)
        if self.get().entries != saved["entries"]:
            self.get().restore(saved["entries"])

    def _replace(self, saved: dict[str, Any], opened: Callable[[], None]) -> None:
        path = self._folder.log
        before, self._engine = path.read_bytes(), None  # Closes the file.
        try:
            replace_file(path, saved["log"])  # The old log is empty, or the beginning of this one.
            self._engine = self._open()
            if (found := self._engine.entries) < saved["entries"]:
                raise Corrupt(f"{found} whole entries")
        except BaseException as error:
            self._engine = None
            replace_file(path, before)
            self._engine = self._open()
            opened()
            if isinstance(error, Corrupt):
                raise Corrupt(
                    f"load_state_dict: the state's log is damaged, expected {saved['entries']} "
                    f"entries up to step {saved['step']} ({error}); load another copy of the state"
                ) from None
            raise
        opened()


def streaming_arguments(training: Training) -> dict[str, Any]:
    """Arguments that every compiled engine with streamed weights takes."""
    options = training.options
    link, pin = options.link, options.pin or (-1, -1)
    return {
        **options.keywords_for("engine"),
        "compute": training.device.compute(),
        "link": (link.d2h_gbps, link.h2d_gbps, link.latency_us) if link else (0.0, 0.0, 0.0),
        "limits": tier_limits(options.budget, training.device),
        "resident_bytes": bytes_beside(training),
        "resident_room": options.resident,
        "family": options.family,
        "seed": options.seed,
        "groups": len(training.param_groups),
        "device_cpu": pin[0],
        "lane_cpu": pin[1],
    }


def bytes_beside(training: Training) -> int:
    """Bytes of the model on the device beside the streamed weights."""
    trained = {id(w.parameter) for w in training.weights}
    others = [p for p in training.model.parameters() if id(p) not in trained]
    return sum(t.nbytes for t in (*others, *training.model.buffers()))
