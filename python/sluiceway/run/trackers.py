"""Sends the figures of a run to the trackers of `train.report_to`, through accelerate."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from sluiceway.config.file import flattened
from sluiceway.config.schema import Config
from sluiceway.errors import InvalidArgument, first_line

_NAMES = {  # As transformers.Trainer names them.
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/learning_rate",
    "eval_loss": "eval/loss",
}
# Those that group runs in a project have a variable that names it, as with transformers.Trainer.
_PROJECTS = {"wandb": "WANDB_PROJECT", "trackio": "TRACKIO_PROJECT"}


def check_trackers(names: list[str]) -> None:
    """Refuse trackers whose package is not installed."""
    if not names:
        return
    try:
        from accelerate.tracking import get_available_trackers
    except ImportError:
        raise InvalidArgument(
            "train.report_to: needs accelerate; install it with pip install 'sluiceway[train]'"
        ) from None
    there = [str(one) for one in get_available_trackers()]
    for name in names:
        if name not in there:
            raise InvalidArgument(
                f"train.report_to: {name} is not installed; install it with pip install {name}, "
                "or leave it out"
            )


class Trackers:
    """The trackers of one run; without `train.report_to` there are none, and nothing is imported.

    `check_trackers` has accepted their names. A tracker that fails is named once on stderr and gets
    nothing more: training goes on.

    Parameters
    ----------
    run : Path
        Folder of the run. Its name is the run's name in the tracker; TensorBoard's files go to
        the folder `tensorboard` inside it.
    """

    def __init__(self, run: Path, config: Config) -> None:
        self._run, self._config = run.resolve(), config
        self._trackers: list[Any] = []

    def __call__(self, line: dict[str, Any]) -> None:
        """Report a line of metrics."""
        if not self._trackers:
            return
        figures = {name: line[key] for key, name in _NAMES.items() if line.get(key) is not None}
        if line.get("seconds"):
            figures["train/tokens_per_second"] = line["tokens"] / line["seconds"]
        self._try(lambda tracker: tracker.log(figures, step=line["step"]))

    def __enter__(self) -> Self:
        names = self._config.train.report_to
        if names:
            from accelerate.tracking import LOGGER_TYPE_TO_CLASS

            for name in names:
                self._trackers.append(self._made(name, LOGGER_TYPE_TO_CLASS[name]))
        values = {
            key: value if isinstance(value, (bool, int, float, str)) else str(value)
            for key, value in flattened(self._config.resolved()).items()
        }
        self._try(lambda tracker: tracker.start())
        self._try(lambda tracker: tracker.store_init_configuration(values))
        return self

    def __exit__(self, *_: object) -> None:
        self._try(lambda tracker: tracker.finish())
        self._trackers = []

    def _made(self, name: str, kind: type) -> Any:
        if kind.requires_logging_directory:
            return kind(name, logging_dir=str(self._run))
        if name in _PROJECTS:
            return kind(os.environ.get(_PROJECTS[name], "sluiceway"), name=self._run.name)
        return kind(self._run.name)

    def _try(self, call: Callable[[Any], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # Whatever a service raises that cannot be reached.
                self._trackers.remove(tracker)
                print(
                    f"sluiceway: {tracker.name} gets no more figures of this run: "
                    f"{first_line(error)}",
                    file=sys.stderr,
                )
