"""Turns documents into one stream of tokens with marks for learning; large ones are cached.

A tokenizer takes about a second for a megabyte of text. If tokenising takes longer than a few
seconds, the tokens are written to files under a hash of documents and tokenizer. This run, and
later runs with the same documents, map these files, which costs neither time nor memory.

    ~/.cache/sluiceway/tokens/<hash>/     or below XDG_CACHE_HOME; may be deleted at any time
        tokens     int32, all documents one after the other
        learned    bool, parallel to tokens
        lengths    int64, tokens of each document
        checksum   SHA-256 of these three
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluiceway.base.atomic import replace_folder
from sluiceway.base.meter import meter
from sluiceway.errors import IoError
from sluiceway.text.conversations import (
    common_prefix,
    conversation_tokens,
    marked_template,
    tell_lost_tools,
)
from sluiceway.text.documents import Corpus, Document

_KEPT_FROM = 4 << 20  # Characters.
_PIECE = 1 << 18  # Characters that a tokenizer gets at once; it needs 140 bytes for each.
_REVISION = 3  # Raise it when this file makes other tokens from a document.
_OVERLAP = 512  # Characters that a piece has of each neighbour.
_ALIKE = 8  # Tokens on each side of a seam that are the same in both pieces.
_WORD_END = re.compile(r"\S(?= \S)")
_CHECKSUM = "checksum"
_FILES = {"tokens": np.int32, "learned": np.bool_, "lengths": np.int64}


Located = tuple[np.ndarray, np.ndarray]  # Tokens, and where in the text each one starts.


@dataclass(frozen=True)
class TokenStream:
    """The tokens of all documents; a document without text has none."""

    tokens: np.ndarray
    learned: np.ndarray  # Parallel to tokens: true for tokens that are predicted.
    lengths: np.ndarray  # Tokens of each document.


def tokenise(corpus: Corpus, tokenizer: Any) -> TokenStream:
    """Tokenise a corpus, or map its tokens from cached files.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The chat template is missing or cannot be used; the error has file and line.
    """
    size = sum(map(_size, corpus.documents))
    marked = _marked(corpus, tokenizer)
    tell_lost_tools(corpus.documents, tokenizer)
    hashable = getattr(tokenizer, "backend_tokenizer", None) is not None
    if size < _KEPT_FROM or not hashable or (cache := _cache()) is None:
        return _in_memory(corpus, tokenizer, marked)
    folder = cache / _key(corpus, tokenizer, marked)
    if (kept := _mapped(folder, len(corpus.documents))) is not None:
        return kept
    if not sys.stderr.isatty():
        print(f"sluiceway: tokenising {size:,} characters, which is done once", file=sys.stderr)
    try:
        with replace_folder(folder) as fresh, meter("tokenise", size) as advance:
            _write(fresh, _each(corpus, tokenizer, marked, advance))
    except IoError:  # The cache is full or not writable, which must not stop a training.
        pass  # Or another run was faster.
    return _mapped(folder, len(corpus.documents)) or _in_memory(corpus, tokenizer, marked)


def _size(document: Document) -> int:
    said = sum(len(message["content"]) for message in document.messages or ())
    return len(document.prompt) + len(document.text) + said


def _each(
    corpus: Corpus, tokenizer: Any, marked: str | None, advance: Any = lambda count: None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for document in corpus.documents:
        yield _tokens_of(document, tokenizer, marked)
        advance(_size(document))


def _in_memory(corpus: Corpus, tokenizer: Any, marked: str | None) -> TokenStream:
    parts = list(_each(corpus, tokenizer, marked))
    return TokenStream(
        np.concatenate([tokens for tokens, _ in parts] or [np.zeros(0, np.int32)]),
        np.concatenate([learned for _, learned in parts] or [np.zeros(0, bool)]),
        np.array([len(tokens) for tokens, _ in parts], np.int64),
    )


def _cache() -> Path | None:
    """Return the folder of all cached tokens; None if this user has none."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "sluiceway" / "tokens" if home[:1] != "~" else None


def _marked(corpus: Corpus, tokenizer: Any) -> str | None:
    """Return the template of the conversations; None if there are none, or none is marked."""
    first = next((d for d in corpus.documents if _is_chat(d, tokenizer)), None)
    return None if first is None else marked_template(tokenizer, first.place)


def _key(corpus: Corpus, tokenizer: Any, marked: str | None) -> str:
    """Hash the documents and everything that determines their tokens."""
    import tokenizers
    import transformers

    about = (
        (tokenizers.__version__, transformers.__version__, _PIECE, _REVISION),
        tokenizer.backend_tokenizer.to_str(),
        tokenizer.chat_template,
        marked,
        {key: str(value) for key, value in tokenizer.special_tokens_map.items()},
        tokenizer.eos_token_id,
        getattr(tokenizer, "split_special_tokens", False),
    )
    digest = hashlib.sha256(json.dumps(about).encode())
    for document in corpus.documents:
        text = document.text.encode()
        more = [document.prompt, document.messages, document.given, document.tools]
        digest.update(json.dumps([len(text), more]).encode())
        digest.update(text)
    return digest.hexdigest()[:32]


def _checksum(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in _FILES:
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _mapped(folder: Path, documents: int) -> TokenStream | None:
    """Map the tokens in the folder; None if it is missing, incomplete or damaged."""
    try:
        if (folder / _CHECKSUM).read_text() != _checksum(folder):
            return None
        arrays = (np.memmap(folder / name, dtype, mode="r") for name, dtype in _FILES.items())
        stream = TokenStream(*arrays)
    except (OSError, ValueError):
        return None
    count = int(stream.lengths.sum())
    whole = len(stream.tokens) == len(stream.learned) == count and len(stream.lengths) == documents
    return stream if whole else None


def _write(folder: Path, parts: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
    lengths = []
    with (folder / "tokens").open("wb") as tokens, (folder / "learned").open("wb") as learned:
        for ids, marks in parts:
            tokens.write(ids)
            learned.write(marks)
            lengths.append(len(ids))
    (folder / "lengths").write_bytes(np.array(lengths, np.int64))
    (folder / _CHECKSUM).write_text(_checksum(folder))


def _is_chat(document: Document, tokenizer: Any) -> bool:
    """Return whether the chat template writes a document; if there is none, a prompt does."""
    templated = tokenizer.chat_template is not None
    return document.messages is not None and (templated or not document.prompt)


def _tokens_of(
    document: Document, tokenizer: Any, marked: str | None
) -> tuple[np.ndarray, np.ndarray]:
    if _is_chat(document, tokenizer):
        return conversation_tokens(document, tokenizer, marked)
    if document.prompt:
        return _answer(document, tokenizer)
    if not document.text.strip():
        return np.zeros(0, np.int32), np.zeros(0, bool)
    tokens = _text(document.text, tokenizer)
    return tokens, np.ones(len(tokens), bool)


def _answer(document: Document, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tokenise prompt and text as one; what is learned begins where the prompt's tokens end."""
    tokens = _text(document.prompt + document.text, tokenizer)
    return tokens, np.arange(len(tokens)) >= common_prefix(_ids(document.prompt, tokenizer), tokens)


def _text(text: str, tokenizer: Any) -> np.ndarray:
    """Tokenise a text, in pieces if it is long, with one begin token if any, and one end token."""
    cuts = _cuts(text) if _can_be_cut(tokenizer) else []
    tokens = _in_pieces(text, cuts, tokenizer) if cuts else None
    if tokens is None:
        tokens = _ids(text, tokenizer)
    end = tokenizer.eos_token_id
    if end is None:
        return tokens
    while tokens[-1:].tolist() == [end]:
        tokens = tokens[:-1]
    return np.append(tokens, np.int32(end))


def _can_be_cut(tokenizer: Any) -> bool:
    """Return whether tokens have places, and depend on the text around them alone."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return tokenizer.is_fast and type(model).__name__ != "Unigram"


def _ids(text: str, tokenizer: Any) -> np.ndarray:
    return np.array(_begun_once(tokenizer(text, verbose=False)["input_ids"], tokenizer), np.int32)


def _begun_once(ids: list[int], tokenizer: Any) -> list[int]:
    """Leave out a begin token before a text that has one already, as templates write it."""
    begin = getattr(tokenizer, "bos_token_id", None)
    return ids[1:] if begin is not None and ids[:2] == [begin, begin] else ids


def _cuts(text: str) -> list[int]:
    """Return where to cut a text: before a word, or else a line."""
    cuts, start = [], 0
    while len(text) - start > 2 * _PIECE:
        low, high = start + _PIECE, start + 2 * _PIECE
        found = _WORD_END.search(text, low, high)
        start = found.end() if found else text.find("\n", low, high) + 1 or high
        cuts.append(start)
    return cuts


def _in_pieces(text: str, cuts: list[int], tokenizer: Any) -> np.ndarray | None:
    """Tokenise pieces that overlap, and join each to the next where both have the same tokens.

    None if two have no such place. The ends of a piece do not count: some tokenizers put a blank
    before every text, and merge across words.
    """
    done: list[np.ndarray] = []
    before, after = _around(tokenizer)
    ids, starts = _located(text, 0, cuts[0] + _OVERLAP, tokenizer)
    for cut, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
        more, begins = _located(text, cut - _OVERLAP, end + _OVERLAP, tokenizer)
        seam = _seam(cut, (ids, starts), (more, begins))
        if seam is None:
            return None
        done.append(ids[: seam[0]])
        ids, starts = more[seam[1] :], begins[seam[1] :]
    whole = np.concatenate([*done, ids])
    if before and whole[: len(before)].tolist() == before:  # A template wrote it already.
        before = []
    return np.concatenate([np.array(before, np.int32), whole, np.array(after, np.int32)])


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after every text."""
    found = tokenizer("a", verbose=False, return_special_tokens_mask=True)
    ids, added = found["input_ids"], found["special_tokens_mask"]
    inside = [k for k, mark in enumerate(added) if not mark] or [0]
    return ids[: inside[0]], ids[inside[-1] + 1 :]


def _located(text: str, begin: int, end: int, tokenizer: Any) -> Located:
    """Tokenise a part of a text."""
    begin = max(begin, 0)
    found = tokenizer(
        text[begin:end], verbose=False, return_offsets_mapping=True, add_special_tokens=False
    )
    starts = np.array([start for start, _ in found["offset_mapping"]], np.int64)
    return np.array(found["input_ids"], np.int32), starts + begin


def _seam(cut: int, left: Located, right: Located) -> tuple[int, int] | None:
    """Return a token of each side that starts at the same place, nearest to the cut.

    The tokens around it are the same on both sides.
    """
    (ids, starts), (more, begins) = left, right
    # A character may have several tokens, which start at the same place: the first one counts.
    places, at, there = np.intersect1d(starts, begins, return_indices=True)
    for near in np.argsort(np.abs(places - cut), kind="stable"):
        i, j = int(at[near]), int(there[near])
        if min(i, j) < _ALIKE or max(i + _ALIKE - len(ids), j + _ALIKE - len(more)) > 0:
            continue
        if np.array_equal(ids[i - _ALIKE : i + _ALIKE], more[j - _ALIKE : j + _ALIKE]):
            return i, j
    return None
