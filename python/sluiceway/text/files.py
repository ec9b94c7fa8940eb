"""Finds the files of a data set and reads their texts or records, each with its place.

A file's format comes from the end of its name, and for other names from the content:

    .jsonl .ndjson .json    records: an object a line, or one array of objects
    .csv .tsv               records: the first line names the columns
    .parquet                records, read by pyarrow
    a folder of `datasets`  records, as `Dataset.save_to_disk` wrote them
    any other folder        all files in it with a name of this list or .txt, or else .md; if some
                            are called train and others test, those of the part that is read
    others                  records if they begin with a JSON object or an array of them, else text

`hf://datasets/OWNER/NAME[@REVISION][/PATH]` is a folder, a file or a glob in a repository of the
Hugging Face hub, which is downloaded first, or looked up in the hub's cache on this machine.
"""

from __future__ import annotations

import csv
import errno
import glob
import io
import itertools
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sluiceway.config.schema import HUB, DataSection, is_local
from sluiceway.errors import InvalidArgument, IoError, Unavailable, first_line

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_TEXTS = (".txt", ".md")
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
_SNIFFED = 3  # Lines that say whether a file holds JSON records.
_NOT_UTF8 = 0.1  # Largest share of bytes that are not UTF-8 in what may pass as text.
_WIDE = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")  # Marks of UTF-32.
_BLANKS = re.compile(r"[ \t\r\n]*")  # Between the values of JSON.
_HELD_OUT = ("validation", "valid", "eval", "dev", "test")  # Names that data sets give that part.

Row = tuple[str, str | dict[str, Any]]  # Place, as file:line, and a text or a record.


class Reading:
    """Reads texts and records of one part of the data, and counts files and repairs.

    It reads these `columns` of a table, if the table has any of them; others are only named.
    """

    def __init__(self, file_format: str, part: str, columns: Collection[str]) -> None:
        self._format, self._part, self._columns = file_format, part, columns
        self.files = 0
        self.replaced = 0  # Bytes that were not UTF-8.
        self.replaced_at = ""  # File and line of the first.
        self.other_parts: list[str] = []  # Splits, and files of a folder, that are not read.

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
        for path in self.found(name):
            self.files += 1
            if path.is_dir():
                yield from self._saved_set(path)
            elif (kind := self._format_of(path)) == "parquet":
                yield from self._parquet(path)
            else:
                text = self._decoded(path)
                if kind is None:
                    kind = "jsonl" if _is_json(text) else "text"
                yield from {"jsonl": _json, "csv": _csv, "text": _text}[kind](path, text)

    def found(self, name: str) -> list[Path]:
        """Return the files of one name of the config, in order, without opening them."""
        try:
            path = _downloaded(name, self._part) if name.startswith(HUB) else Path(name)
            return self._find(path, name)
        except (OSError, ValueError) as error:
            if isinstance(error, (IoError, InvalidArgument)):
                raise
            reason = getattr(error, "strerror", None) or str(error)
            code = getattr(error, "errno", None) or errno.EINVAL
            raise IoError(f"data.{self._part}: {name[:200]}: {reason}", code, name) from None

    def _find(self, path: Path, name: str) -> list[Path]:
        at = f"data.{self._part}: {name}"
        if path.is_dir():
            return [path] if _is_saved_set(path) else self._in_folder(path, at)
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

    def _in_folder(self, path: Path, at: str) -> list[Path]:
        inside = [p for p in path.rglob("*") if p.suffix.lower() in (*_FORMATS, *_TEXTS)]
        shown = [p for p in inside if not any(s[0] == "." for s in p.relative_to(path).parts)]
        files = sorted(p for p in shown if p.is_file())
        files = [p for p in files if p.suffix.lower() != ".md"] or files  # Else a card of the set.
        if not files:
            raise InvalidArgument(
                f"{at} is a folder without files of data, expected names that end in "
                f"{', '.join((*_FORMATS, *_TEXTS))}, or a set that datasets saved"
            )
        wanted = ("train",) if self._part == "train" else _HELD_OUT
        found = [p for p in files if set(re.findall(r"[a-z]+", p.stem.lower())) & {*wanted}]
        self.other_parts += [str(p) for p in files if found and p not in found]
        return found or files

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
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff") and raw[:4] not in _WIDE:
            try:
                return raw.decode("utf-16")
            except UnicodeDecodeError as error:
                raise InvalidArgument(
                    f"{path}: begins as UTF-16, and byte {error.start} is not; save it as UTF-8"
                ) from None
        _check_is_text(path, raw)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            text = raw.decode("utf-8", errors="replace")
            replaced = len(raw) - len(raw.decode("utf-8", errors="ignore").encode())
            if replaced > _NOT_UTF8 * len(raw):
                raise InvalidArgument(
                    f"{path}: {replaced} of {len(raw)} bytes are not UTF-8; save it as UTF-8 text"
                ) from None
            line = raw.count(b"\n", 0, error.start) + 1
            self.replaced_at = self.replaced_at or f"{path}:{line}"
            self.replaced += replaced
        return text.removeprefix("\ufeff")

    def _saved_set(self, path: Path) -> Iterator[Row]:
        try:
            import datasets
        except ImportError:
            raise _not_installed("datasets", path) from None
        try:
            found = datasets.load_from_disk(str(path))
        except Exception as error:  # Of a dozen types.
            raise _unreadable(path, error) from None
        if isinstance(found, datasets.DatasetDict):
            names = ["train"] if self._part == "train" else [n for n in _HELD_OUT if n in found]
            if not names or names[0] not in found:
                expected = "train" if self._part == "train" else "one of " + ", ".join(_HELD_OUT)
                raise InvalidArgument(
                    f"data.{self._part}: {path} has {', '.join(found)}, expected {expected}; name "
                    "the folder of one of them"
                )
            self.other_parts += [str(path / name) for name in found if name != names[0]]
            found = found[names[0]]
        names = found.column_names
        if wanted := self._wanted(names, path):
            yield from _table(path, iter(found.select_columns(wanted)), Exception)
        elif len(found):
            yield f"{path}:1", dict.fromkeys(names, "")

    def _parquet(self, path: Path) -> Iterator[Row]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise _not_installed("pyarrow", path) from None
        errors = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
        try:
            file = parquet.ParquetFile(path)
            names = file.schema_arrow.names
        except errors as error:
            raise _unreadable(path, error) from None
        if wanted := self._wanted(names, path):
            batches = file.iter_batches(columns=wanted)
            yield from _table(path, (row for batch in batches for row in batch.to_pylist()), errors)
        elif file.metadata.num_rows:
            yield f"{path}:1", dict.fromkeys(names, "")

    def _wanted(self, names: list[str], path: Path) -> list[str]:
        wanted = [name for name in names if name in self._columns]
        if twice := {name for name in wanted if names.count(name) > 1}:
            raise InvalidArgument(f"{path}: has two columns {min(twice)}, expected one")
        return wanted


def missing_files(data: DataSection) -> str | None:
    """Say which of the data's names is not there; None if all are. Opens no file."""
    for part, names in (("train", data.train), ("eval", data.eval)):
        for name in names:
            if not is_local(name):
                continue
            try:
                Reading(data.format, part, ()).found(name)
            except (IoError, InvalidArgument) as error:
                return str(error)
    return None


def _downloaded(name: str, part: str) -> Path:
    """Download the files of data that a name of the hub means; return their place here."""
    from huggingface_hub import snapshot_download

    owner, _, rest = name.removeprefix(HUB).partition("/")
    repository, _, inside = rest.partition("/")
    repository, _, revision = repository.partition("@")
    if not owner or not repository:
        raise InvalidArgument(f"data.{part}: {name}, expected {HUB}OWNER/NAME")
    patterns = [inside, f"{inside}/*"] if inside else [f"*{end}" for end in (*_FORMATS, ".txt")]
    try:
        folder = snapshot_download(
            f"{owner}/{repository}",
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=patterns,
        )
    except Exception as error:  # Those of the HTTP library, too, which huggingface_hub passes on.
        raise IoError(
            f"data.{part}: {name} cannot be downloaded, {first_line(error).rstrip('.')}; check the "
            "name, the network, and for a private one hf auth login",
            errno.ENOENT,
            name,
        ) from None
    return Path(folder) / inside


def _is_saved_set(path: Path) -> bool:
    return any((path / name).is_file() for name in _SAVED)


def _check_is_text(path: Path, raw: bytes) -> None:
    kind = next((kind for mark, kind in _BINARY.items() if raw.startswith(mark)), None)
    if kind is None and b"\0" in raw:
        kind = "binary, or text in UTF-16 or UTF-32"
    if kind is not None:
        raise InvalidArgument(
            f"{path}: is {kind}, expected text in UTF-8, JSON, CSV, or Parquet with a name that "
            "ends in .parquet"
        )


def _table(path: Path, rows: Iterator[dict[str, Any]], errors: Any) -> Iterator[Row]:
    for number in itertools.count(1):
        try:
            record = next(rows, None)
        except errors as error:
            raise _unreadable(f"{path}:{number}", error) from None
        if record is None:
            return
        yield f"{path}:{number}", _plain(record)


def _unreadable(at: Path | str, error: BaseException) -> InvalidArgument:
    return InvalidArgument(f"{at}: cannot be read, {first_line(error)}")


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
        pass
    lines = list(itertools.islice((s for s in text.split("\n") if s.strip()), _SNIFFED))
    looks = all(s.strip().startswith("{") and s.strip().endswith("}") for s in lines)
    return looks or any(_parses(s) for s in lines)


def _parses(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _text(path: Path, text: str) -> Iterator[Row]:
    if text.strip():
        yield f"{path}:1", text


def _json(path: Path, text: str) -> Iterator[Row]:
    if text.lstrip().startswith("["):
        yield from _json_array(path, text)
        return
    if not _parses(text.lstrip().split("\n", 1)[0]) and _parses(text):
        yield f"{path}:1", json.loads(text)  # One object of several lines.
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, _object(_loaded(line, place), place)


def _json_array(path: Path, text: str) -> Iterator[Row]:
    """Read `[{...}, ...]` record by record, so that each has its line."""
    decoder = json.JSONDecoder()
    counted, line, at, comma = 0, 1, text.index("[") + 1, False
    while True:
        at = _BLANKS.match(text, at).end()
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]" and not text[at + 1 :].strip() and not comma:
            return
        place = f"{path}:{line}"
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{place}: is not JSON, expected an array of objects") from error
        yield place, _object(record, place)
        at = _BLANKS.match(text, at).end()
        comma = text[at : at + 1] == ","
        if comma:
            at += 1
        elif text[at : at + 1] != "]":
            raise InvalidArgument(f"{place}: is not JSON, expected an array of objects")


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
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
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
            named = [name for name in columns if name]
            if twice := {name for name in named if named.count(name) > 1}:
                raise InvalidArgument(f"{path}:{begin}: has two columns {min(twice)}, expected one")
            continue
        if len(cells) != len(columns):
            raise InvalidArgument(
                f"{path}:{begin}: has {len(cells)} cells, expected {len(columns)} as in the first "
                "line"
            )
        yield f"{path}:{begin}", dict(zip(columns, cells, strict=True))


def _delimiter(text: str) -> str:
    """Return the delimiter that the first record has most of, outside of quotes."""
    counts, quoted = dict.fromkeys(",;\t", 0), False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif character == "\n" and not quoted:
            break
        elif character in counts and not quoted:
            counts[character] += 1
    return max(counts, key=counts.__getitem__)


def _plain(value: Any) -> Any:
    """Leave out empty fields that a table gives to structs, and write dates and such as text."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
