"""Reads and writes the folder of a run: config, name, metrics, summary, trace and saves."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import yaml

from sluiceway.base.atomic import older_folder, replace_file
from sluiceway.base.json_text import json_text
from sluiceway.config.engine_section import STORE_FOLDER
from sluiceway.config.file import load_config
from sluiceway.config.schema import Config
from sluiceway.errors import Corrupt, Error, InvalidArgument, IoError

CONFIG_FILE = "config.yaml"
COMPARISON = "native"  # Run folder, inside a run folder, of what it is compared with.


class RunFolder:
    """The files of a run; one process at a time may hold them.

    Parameters
    ----------
    path : Path
        The folder. `create` and `reopen` make instances.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.summary_path = path / "summary.json"
        self.trace_path = path / "trace.json"
        self.checkpoint_path = path / "checkpoint"
        self.best_path = path / "best"
        self.identity_path = path / "run.id"
        self._metrics: TextIO | None = None
        self._made: list[Path] = []  # Folders that were not there before, the deepest first.

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """Make the folder of a new run and write its resolved config.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            The folder is not empty.
        """
        cls.check_new(path)
        folder = cls(path)
        whole = path.resolve()
        folder._made = [p for p in (whole, *whole.parents) if not p.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(path, "cannot be made", error) from None
        folder.write_config(config)
        if config.engine.commits:
            _replace(folder.identity_path, secrets.token_hex(16) + "\n")
        folder._lock()
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Take the folder of an earlier run."""
        cls.check(path)
        folder = cls(path)
        folder._refuse_links()
        folder._lock()
        return folder

    @classmethod
    def check_new(cls, path: Path) -> None:
        """Refuse a folder that is not empty."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            resume = cls(path)._can_be_resumed()
            hint = f"; go on with: sluiceway resume {path}" if resume else "; choose another --out"
            raise InvalidArgument(f"--out: {path} is not empty, expected a new folder{hint}")

    @staticmethod
    def check(path: Path) -> None:
        """Refuse a folder that has no run."""
        if not (path / CONFIG_FILE).is_file():
            what = "has no config.yaml" if path.is_dir() else "is not a folder"
            raise IoError(
                f"{path}: {what}, expected the folder of a run that sluiceway train began",
                errno.ENOENT,
                str(path),
            )

    @property
    def identity(self) -> str | None:
        """Name of the run in commits to a store; None if the run has no name."""
        try:
            return self.identity_path.read_text().strip()
        except FileNotFoundError:
            return None

    def _can_be_resumed(self) -> bool:
        if not (self.path / CONFIG_FILE).exists():
            return False
        if self.checkpoint_path.exists():
            return True
        try:
            return load_config(self.path / CONFIG_FILE).engine.commits
        except Error:
            return False

    def _refuse_links(self) -> None:
        """Refuse symbolic links as saves, because each save takes the name of the one before."""
        for path in (self.checkpoint_path, older_folder(self.checkpoint_path)):
            if path.is_symlink():
                raise InvalidArgument(
                    f"{path}: is a symbolic link, expected a folder, since each save takes its "
                    "name; put the folder itself here, or make the whole run folder a link"
                )

    def _lock(self) -> None:
        try:
            self._metrics = self.metrics_path.open("a", encoding="utf-8")
            fcntl.flock(self._metrics, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(
                f"{self.path}: another process runs this run; wait for it to end"
            ) from None
        except OSError as error:
            raise _refused(self.path, "cannot be written", error) from None

    def is_held(self) -> bool:
        """Tell whether a process trains into the folder."""
        with contextlib.suppress(FileNotFoundError, PermissionError), self.metrics_path.open() as f:
            try:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # A file system without locks cannot tell.
                return False
        return False

    def write_config(self, config: Config) -> None:
        """Write every value of the config, defaults included."""
        text = yaml.safe_dump(config.resolved(), sort_keys=False, default_flow_style=None)
        _replace(self.path / CONFIG_FILE, text)

    def append(self, line: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl; write null for numbers that are not finite."""
        if self._metrics is None:
            raise ValueError("RunFolder.append: the folder is closed")
        with _refusals(self.metrics_path):
            self._metrics.write(json_text(line) + "\n")
            self._metrics.flush()

    def sync_metrics(self) -> None:
        """Make all lines durable, so that no save is of a later step than the last line on disk."""
        if self._metrics is not None:
            with _refusals(self.metrics_path):
                os.fsync(self._metrics.fileno())

    @contextlib.contextmanager
    def changed_config(self, config: Config) -> Iterator[None]:
        """Write `config`; an error inside restores the file, an interruption does not."""
        path = self.path / CONFIG_FILE
        before = path.read_text()
        self.write_config(config)
        try:
            yield
        except Error:
            _replace(path, before)
            raise

    def length_until(self, step: int) -> tuple[int, int | None]:
        """Bytes of the lines up to `step`, and the step of the last such line (None without lines).

        Neither later lines nor an incomplete last line count.

        Raises
        ------
        sluiceway.errors.Corrupt
            A complete line is not a line of metrics.
        """
        keep, last = 0, None
        with self.metrics_path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n") or (found := self._step_of(raw, number)) > step:
                    break
                keep, last = keep + len(raw), found
        return keep, last

    def cut_back(self, length: int) -> None:
        """Drop the lines of metrics behind the first `length` bytes."""
        if self._metrics is None:
            raise ValueError("RunFolder.cut_back: the folder is closed")
        self._metrics.truncate(length)

    def _step_of(self, raw: bytes, number: int) -> int:
        try:
            return int(json.loads(raw)["step"])
        except (ValueError, KeyError, TypeError):
            raise Corrupt(
                f"{self.metrics_path}:{number}: is not a line of metrics, expected a JSON object "
                "with a step; remove the line"
            ) from None

    def lines(self) -> list[dict[str, Any]]:
        """Return every whole line of metrics.jsonl."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, whole or not at all."""
        _replace(self.summary_path, json_text(summary, indent=1) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """Return the content of summary.json, or None if there is none yet."""
        if not self.summary_path.exists():
            return None
        return json.loads(self.summary_path.read_text())

    def discard_if_unused(self) -> None:
        """Remove a folder in which no step was made, so that the command can be repeated."""
        if self.metrics_path.exists() and self.metrics_path.stat().st_size:
            return
        if self.checkpoint_path.exists() or (self.path / COMPARISON).exists():
            return
        self.close()
        made = (
            self.metrics_path,
            self.path / CONFIG_FILE,
            self.identity_path,
            self.summary_path,
            self.trace_path,
        )
        for path in made:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / STORE_FOLDER, ignore_errors=True)  # Ours: the folder was empty.
        with contextlib.suppress(OSError):
            for path in self._made:
                path.rmdir()

    def close(self) -> None:
        """Release the folder; idempotent."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # append() has raised it already.
                self._metrics.close()
            self._metrics = None


def _replace(path: Path, text: str) -> None:
    with _refusals(path):
        replace_file(path, text.encode())


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(path, "cannot be written", error) from None


def _refused(path: Path, what: str, error: OSError) -> IoError:
    return IoError(f"{path}: {what}, {error.strerror}", error.errno, str(path))
