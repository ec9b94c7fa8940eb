"""Finds the files of a data set and reads their texts or records, each with its place.

A file's format comes from the end of its name, and for other names from the content:

    .jsonl .ndjson .json    records: an object a line, or one array of objects
    .csv .tsv               records: the first line names the columns
    .parquet                records, read by pyarrow
    a folder of `datasets`  records, as `Dataset.save_to_disk` wrote them
    any other folder        all files in it that have a name of this list, .txt or .md
    others                  records if they begin with a JSON object or an array of them, else text
"""

from __future__ import annotations

import csv
import errno
import glob
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluiceway.errors import InvalidArgument, IoError, Unavailable

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_IN_FOLDERS = (*_FORMATS, ".txt", ".md")
_SAVED = ("dataset_dict.json", "state.json")  # Written by `save_to_disk`, for several sets or one.
# Beginnings of files that people have in a folder of data and that hold no text.
_BINARY = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"%PDF": "PDF",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
}
_SNIFFED = 1 << 16  # Bytes.
_HELD_OUT = ("validation", "valid", "eval", "dev", "test")  # Names that data sets give that part.

Row = tuple[str, str | dict[str, Any]]  # Place, as file:line, and a text or a record.


class Reading:
    """Reads texts and records of one part of the data, and counts files and repairs."""

    def __init__(self, file_format: str, part: str) -> None:
        self._format, self._part = file_format, part
        self.files = 0
        self.replaced = 0  # Bytes that were not UTF-8.

    def rows(self, name: str) -> Iterator[Row]:
        """Read a file, a folder, or the files that a glob matches, in the order of their names.

        Raises
        ------
        sluiceway.errors.IoError
            A file is missing or cannot be read.
        sluiceway.errors.InvalidArgument
            A file is binary, or a line cannot be parsed; the text has file and line.
        sluiceway.errors.Unavailable
            The library that reads this format is not installed.
        """
        for path in self._found(name):
            self.files += 1
            if path.is_dir():
                yield from self._saved_set(path)
            elif (kind := self._format_of(path)) == "parquet":
                yield from _parquet(path)
            else:
                text = self._decoded(path)
                if kind is None:
                    kind = "jsonl" if _is_json(text) else "text"
                yield from {"jsonl": _json, "csv": _csv, "text": _text}[kind](path, text)

    def _found(self, name: str) -> list[Path]:
        at = f"data.{self._part}: {name}"
        path = Path(name)
        if path.is_dir():
            return [path] if self._is_saved_set(path) else self._in_folder(path, at)
        if path.exists() and not path.is_file():  # A pipe is empty when read again.
            raise InvalidArgument(f"{at} is not a regular file; copy its contents to one")
        if path.exists():
            return [path]
        found = sorted(p for p in map(Path, glob.glob(str(path), recursive=True)) if p.is_file())
        if not found:
            problem = "no file matches" if glob.has_magic(name) else "there is no file"
            raise IoError(
                f"data.{self._part}: {problem} {name}, expected a file, a folder, a glob or pydoc",
                errno.ENOENT,
                name,
            )
        return found

    def _is_saved_set(self, path: Path) -> bool:
        return any((path / name).is_file() for name in _SAVED)

    def _in_folder(self, path: Path, at: str) -> list[Path]:
        inside = [p for p in path.rglob("*") if p.suffix.lower() in _IN_FOLDERS and p.is_file()]
        shown = [p for p in inside if not any(s[0] == "." for s in p.relative_to(path).parts)]
        if not shown:
            raise InvalidArgument(
                f"{at} is a folder without files of data, expected names that end in "
                f"{', '.join(_IN_FOLDERS)}, or a set that datasets saved"
            )
        return sorted(shown)

    def _format_of(self, path: Path) -> str | None:
        """Return the format that the config or the file's name says."""
        return _FORMATS.get(path.suffix.lower()) if self._format == "auto" else self._format

    def _decoded(self, path: Path) -> str:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise IoError(
                f"{path}: cannot be read, {error.strerror}", error.errno, str(path)
            ) from None
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            try:
                return raw.decode("utf-16")
            except UnicodeDecodeError as error:
                raise InvalidArgument(
                    f"{path}: begins as UTF-16, and byte {error.start} is not; save it as UTF-8"
                ) from None
        self._check_is_text(path, raw)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("utf-8", errors="replace")
            self.replaced += len(raw) - len(raw.decode("utf-8", errors="ignore").encode())
        return text.removeprefix("\ufeff")

    def _check_is_text(self, path: Path, raw: bytes) -> None:
        kind = next((kind for mark, kind in _BINARY.items() if raw.startswith(mark)), None)
        if kind is None and b"\0" in raw[:_SNIFFED]:
            kind = "binary, or text in UTF-16 or UTF-32"
        if kind is not None:
            raise InvalidArgument(
                f"{path}: is {kind}, expected text in UTF-8, JSON, CSV, or Parquet with a name "
                "that ends in .parquet"
            )

    def _saved_set(self, path: Path) -> Iterator[Row]:
        try:
            import datasets
        except ImportError:
            raise _not_installed("datasets", path) from None
        try:
            found = datasets.load_from_disk(str(path))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidArgument(
                f"{path}: datasets cannot read it, {str(error).splitlines()[0]}"
            ) from None
        if isinstance(found, datasets.DatasetDict):
            names = ["train"] if self._part == "train" else [n for n in _HELD_OUT if n in found]
            if not names or names[0] not in found:
                expected = "train" if self._part == "train" else "one of " + ", ".join(_HELD_OUT)
                raise InvalidArgument(
                    f"data.{self._part}: {path} has {', '.join(found)}, expected {expected}; name "
                    "the folder of one of them"
                )
            found = found[names[0]]
        for number, record in enumerate(found, start=1):
            yield f"{path}:{number}", _without_none(record)


def _not_installed(library: str, path: Path) -> Unavailable:
    return Unavailable(
        f"{path}: is read by {library}, which is not installed; install it with "
        "pip install 'sluiceway[train]'"
    )


def _is_json(text: str) -> bool:
    """Return whether a file whose name does not say what it is holds JSON records."""
    start = text.lstrip()
    if start.startswith("["):
        start = start[1:].lstrip()
    if not start.startswith("{"):
        return False
    try:
        return isinstance(json.JSONDecoder().raw_decode(start)[0], dict)
    except (ValueError, RecursionError):
        return False


def _text(path: Path, text: str) -> Iterator[Row]:
    if text.strip():
        yield f"{path}:1", text


def _json(path: Path, text: str) -> Iterator[Row]:
    if text.lstrip().startswith("["):
        yield from _json_array(path, text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, _object(_loaded(line, place), place)


def _json_array(path: Path, text: str) -> Iterator[Row]:
    """Read `[{...}, ...]` record by record, so that each has its line."""
    decoder = json.JSONDecoder()
    counted, line, at = 0, 1, text.index("[") + 1
    while True:
        at = _skip(text, at)
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]" and not text[at + 1 :].strip():
            return
        place = f"{path}:{line}"
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{place}: is not JSON, expected an array of objects") from error
        yield place, _object(record, place)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            raise InvalidArgument(f"{place}: is not JSON, expected an array of objects")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _loaded(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # A number of 5,000 digits is a ValueError.
        column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidArgument(
            f"{place}{column}: is not JSON, expected one object per line"
        ) from None


def _object(record: Any, place: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InvalidArgument(
            f"{place}: is a {type(record).__name__}, expected an object with text or messages"
        )
    return record


def _csv(path: Path, text: str) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)  # The default refuses a document of 128 KiB.
    head = text.split("\n", 1)[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=head.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] | None = None
    while True:
        begin = lines.line_num + 1
        try:
            cells = next(lines, None)
        except csv.Error as error:
            raise InvalidArgument(f"{path}:{begin}: is not CSV, {error}") from None
        if cells is None:
            return
        if not cells:
            continue
        if columns is None:
            columns = cells
            if len(set(columns)) < len(columns):
                raise InvalidArgument(f"{path}:{begin}: two columns have the same name")
            continue
        if len(cells) != len(columns):
            raise InvalidArgument(
                f"{path}:{begin}: has {len(cells)} cells, expected {len(columns)} as in the first "
                "line"
            )
        yield f"{path}:{begin}", dict(zip(columns, cells, strict=True))


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise _not_installed("pyarrow", path) from None
    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", _without_none(record)
    except pyarrow.ArrowException as error:
        raise InvalidArgument(
            f"{path}: cannot be read as Parquet, {str(error).splitlines()[0]}"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise IoError(f"{path}: cannot be read, {reason}", error.errno, str(path)) from None


def _without_none(value: Any) -> Any:
    """Leave out the empty fields that a table gives each record that lacks them."""
    if isinstance(value, dict):
        return {key: _without_none(v) for key, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
