"""Store the rows of the experiment, one file for each question."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.fidelity.row_lines import Row, append_row, read_rows
from experiments.fidelity.stages import Found
from experiments.regimes.fine_tunes import asked_for
from experiments.regimes.questions import QUESTIONS, Question, wanted


class Shelf:
    """The files of rows under a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows = {
            question.name: {self._key(question.name, row): row
                            for row in read_rows(self.path(question.name))}
            for question in QUESTIONS
        }  # fmt: skip

    def path(self, name: str) -> Path:
        """Path of a question's file."""
        return self.folder / f"{name}.jsonl"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock that keeps other writers out.

        Raises
        ------
        BlockingIOError
            Another process holds the lock.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(
                    f"{self.folder}: another run.py writes there. "
                    "Wait for it, or give another folder with --results."
                ) from None
            yield

    def _key(self, name: str, row: Any) -> str:
        try:
            return asked_for(row).key
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path(name)}: a line lacks {error}, a field of every run. Remove the "
                "line to repeat its run."
            ) from None

    def rows(self, name: str) -> dict[str, Row]:
        """Rows of a question, by the keys of their runs."""
        return self._rows[name]

    def all_rows(self) -> dict[str, Row]:
        """Rows of all questions, each run once."""
        return {key: row for rows in self._rows.values() for key, row in rows.items()}

    def found(self) -> Found:
        """Return every run, whichever question it was run for."""
        return Found(self.all_rows())

    def add(self, name: str, row: Row) -> None:
        """Append a row to a question's file."""
        append_row(self.path(name), row)
        self._rows[name][asked_for(row).key] = row

    def share(self, question: Question) -> None:
        """Copy the question's runs that another question has made, so that its file is complete."""
        found, mine = self.found(), self._rows[question.name]
        for run in wanted(found, question).known:
            if found.has(run) and run.key not in mine:
                self.add(question.name, found.of(run))
