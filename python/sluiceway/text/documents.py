"""Reads texts and conversations from disk, each with its file and line."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sluiceway.config.schema import PYDOC
from sluiceway.errors import InvalidArgument, IoError

_REPEATED = 40  # Shorter paragraphs, such as headings, may occur in both parts.


@dataclass(frozen=True)
class Document:
    """One text, or one conversation."""

    place: str  # "file:line", for errors.
    text: str = ""
    messages: list[dict] | None = None


@dataclass
class Corpus:
    """Documents that were read, and the count of repairs."""

    documents: list[Document] = field(default_factory=list)
    files: int = 0
    replaced: int = 0  # Bytes that were not UTF-8.


def pydoc_text(part: str) -> list[str]:
    """Return texts of `pydoc_data.topics`, the English of Python's own reference manual.

    Parameters
    ----------
    part : str
        "train" or "eval". A hash of a topic's name decides whether it is held out, about one in
        eight, the same in every version of Python. The manual repeats itself across topics, so a
        paragraph is kept once, and never in both parts.
    """
    from pydoc_data.topics import topics

    if part not in ("train", "eval"):
        raise InvalidArgument(f"pydoc_text: part is {part!r}, expected 'train' or 'eval'")
    parts: dict[str, list[str]] = {"eval": [], "train": []}
    held_out = {name for name in topics if _hash(name) % 8 == 0}
    seen: set[str] = set()
    for name in sorted(topics, key=lambda name: (name not in held_out, name)):
        kept = [p for p in topics[name].split("\n\n") if _is_new(p, seen)]
        parts["eval" if name in held_out else "train"].append("\n\n".join(kept))
    return parts[part]


def _hash(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def _is_new(paragraph: str, seen: set[str]) -> bool:
    words = " ".join(paragraph.split())
    if len(words) < _REPEATED:
        return True
    fresh = words not in seen
    seen.add(words)
    return fresh


def read_documents(names: list[str], file_format: str, part: str) -> Corpus:
    """Read files, globs and `pydoc`, in the order given.

    Raises
    ------
    sluiceway.errors.IoError
        A file is missing or cannot be read.
    sluiceway.errors.InvalidArgument
        A line does not parse, or the files have no text; the error has file and line.
    """
    corpus = Corpus()
    for name in names:
        if name == PYDOC:
            corpus.documents += [
                Document(f"pydoc:{number}", text)
                for number, text in enumerate(pydoc_text(part), start=1)
            ]
            continue
        for path in _files(name, part):
            corpus.files += 1
            text = _decode(path, corpus)
            read = _read_jsonl if file_format == "jsonl" else _read_text
            corpus.documents += read(path, text)
    if not any(d.messages or d.text.strip() for d in corpus.documents):
        raise InvalidArgument(
            f"data.{part}: {', '.join(names)} has no text ({corpus.files} files), expected at "
            "least one document"
        )
    return corpus


def _files(name: str, part: str) -> list[Path]:
    if os.path.isdir(name):
        raise InvalidArgument(f"data.{part}: {name} is a folder, expected a file or {name}/*.txt")
    if os.path.exists(name) and not os.path.isfile(name):  # A pipe is empty when read again.
        raise InvalidArgument(
            f"data.{part}: {name} is not a regular file; copy its contents to one"
        )
    if os.path.exists(name):
        return [Path(name)]
    found = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not found:
        is_glob = glob.has_magic(name)
        problem = "no file matches" if is_glob else "there is no file"
        raise IoError(
            f"data.{part}: {problem} {name}, expected a file, a glob or {PYDOC}",
            errno.ENOENT,
            name,
        )
    return [Path(path) for path in found]


def _decode(path: Path, corpus: Corpus) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise IoError(f"{path}: cannot be read, {error.strerror}", error.errno, str(path)) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", errors="replace")
        corpus.replaced += len(raw) - len(raw.decode("utf-8", errors="ignore").encode())
    return text.removeprefix("\ufeff")


def _read_text(path: Path, text: str) -> Iterator[Document]:
    if text.strip():
        yield Document(f"{path}:1", text)


def _read_jsonl(path: Path, text: str) -> Iterator[Document]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # A number of 5,000 digits is a ValueError.
            column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            raise InvalidArgument(
                f"{place}{column}: is not JSON, expected one object per line"
            ) from None
        yield _document(record, place)


def _document(record: object, place: str) -> Document:
    if not isinstance(record, dict):
        raise InvalidArgument(
            f"{place}: is a {type(record).__name__}, expected an object with text or messages"
        )
    if "messages" in record:
        messages = _checked_messages(record["messages"], place)
        for message in messages:
            _check_characters(json.dumps(message, ensure_ascii=False), place)
        return Document(place, messages=messages)
    text = record.get("text")
    if not isinstance(text, str):
        has = ", ".join(sorted(map(str, record))) or "no keys"
        raise InvalidArgument(f"{place}: has {has}, expected a string text, or messages")
    _check_characters(text, place)
    return Document(place, text)


def _check_characters(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise InvalidArgument(
            f"{place}: has {half}, half of a surrogate pair, expected whole characters"
        ) from None


def _checked_messages(messages: object, place: str) -> list[dict]:
    fits = isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in messages
    )
    if not fits:
        raise InvalidArgument(f"{place}: messages is not a list of {{role, content}} strings")
    if not any(m["role"] == "assistant" for m in messages):
        raise InvalidArgument(
            f"{place}: messages has no turn of the assistant to learn from, expected at least one"
        )
    return messages
