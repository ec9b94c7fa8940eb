"""Turns documents into one stream of tokens with marks for learning; large ones are cached.

A tokenizer takes about a second for a megabyte of text. If tokenising takes longer than a few
seconds, the tokens are written to files under a hash of documents and tokenizer. This run, and
later runs with the same documents, map these files, which costs neither time nor memory.

    ~/.cache/sluiceway/tokens/<hash>/     or below XDG_CACHE_HOME; may be deleted at any time
        tokens     int32, all documents one after the other
        learned    bool, parallel to tokens
        lengths    int64, tokens of each document
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluiceway.base.atomic import replace_folder
from sluiceway.base.meter import meter
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.text.documents import Corpus, Document

_KEPT_FROM = 4 << 20  # Characters.
_PIECE = 1 << 18  # Characters that a tokenizer gets at once; it needs 140 bytes for each.
_REVISION = 2  # Raise it when this file makes other tokens from a document.
_WORD_END = re.compile(r"\S(?= \S)")
_MARK = "\ue000"  # A private-use character, which no template has.
# Templates that write today's date get this one: equal data must give equal tokens on every day.
_DAY = datetime.date(2024, 7, 26)
_FILES = {"tokens": np.int32, "learned": np.bool_, "lengths": np.int64}


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
    if size < _KEPT_FROM or getattr(tokenizer, "backend_tokenizer", None) is None:
        return _in_memory(corpus, tokenizer)  # Such a tokenizer cannot be hashed.
    folder = _cache() / _key(corpus, tokenizer)
    if (kept := _mapped(folder, len(corpus.documents))) is not None:
        return kept
    try:
        with replace_folder(folder) as fresh, meter("tokenise", size) as advance:
            _write(fresh, _each(corpus, tokenizer, advance))
    except IoError:  # The cache is full or not writable, which must not stop a training.
        pass  # Or another run was faster.
    return _mapped(folder, len(corpus.documents)) or _in_memory(corpus, tokenizer)


def _size(document: Document) -> int:
    return len(document.text) + sum(len(m["content"]) for m in document.messages or ())


def _each(
    corpus: Corpus, tokenizer: Any, advance: Any = lambda count: None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for document in corpus.documents:
        yield _tokens_of(document, tokenizer)
        advance(_size(document))


def _in_memory(corpus: Corpus, tokenizer: Any) -> TokenStream:
    parts = list(_each(corpus, tokenizer))
    return TokenStream(
        np.concatenate([tokens for tokens, _ in parts] or [np.zeros(0, np.int32)]),
        np.concatenate([learned for _, learned in parts] or [np.zeros(0, bool)]),
        np.array([len(tokens) for tokens, _ in parts], np.int64),
    )


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "sluiceway" / "tokens"


def _key(corpus: Corpus, tokenizer: Any) -> str:
    """Hash the documents and everything that determines their tokens."""
    import tokenizers
    import transformers

    about = (
        (tokenizers.__version__, transformers.__version__, _PIECE, _REVISION),
        tokenizer.backend_tokenizer.to_str(),
        tokenizer.chat_template,
        {key: str(value) for key, value in tokenizer.special_tokens_map.items()},
        tokenizer.eos_token_id,
        getattr(tokenizer, "split_special_tokens", False),
    )
    digest = hashlib.sha256(json.dumps(about).encode())
    for document in corpus.documents:
        text = document.text.encode()
        digest.update(json.dumps([len(text), document.messages]).encode())
        digest.update(text)
    return digest.hexdigest()[:32]


def _mapped(folder: Path, documents: int) -> TokenStream | None:
    """Map the tokens in the folder; None if it is missing or incomplete."""
    try:
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


def _tokens_of(document: Document, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    if document.messages is not None:
        return _conversation(document, tokenizer)
    if not document.text.strip():
        return np.zeros(0, np.int32), np.zeros(0, bool)
    tokens = _text(document.text, tokenizer)
    return tokens, np.ones(len(tokens), bool)


def _text(text: str, tokenizer: Any) -> np.ndarray:
    """Tokenise a text, in pieces if it is long, with one end token."""
    end = tokenizer.eos_token_id
    pieces: list[np.ndarray] = []
    for piece in _pieces(text):
        if len(pieces) == 1 and pieces[0][-1:].tolist() == [end]:
            pieces[0] = pieces[0][:-1]  # This tokenizer adds begin and end tokens to each piece.
        ids = tokenizer(piece, verbose=False, add_special_tokens=not pieces)["input_ids"]
        pieces.append(np.array(ids, np.int32))
    if end is not None and pieces[-1][-1:].tolist() != [end]:
        pieces.append(np.array([end], np.int32))
    return np.concatenate(pieces)


def _pieces(text: str) -> Iterator[str]:
    """Cut the text before a word's space, where byte-level tokenizers always cut."""
    start = 0
    while len(text) - start > 2 * _PIECE:
        low, high = start + _PIECE, start + 2 * _PIECE
        found = _WORD_END.search(text, low, high)
        cut = found.end() if found else text.find("\n", low, high) + 1 or high
        yield text[start:cut]
        start = cut
    yield text[start:]


def _conversation(document: Document, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tokenise all turns up to the assistant's last, and mark the tokens of the assistant.

    Turns are located in the template's text and not among the tokens, because tokens may merge
    across an edge. A token is marked if any of its characters is the assistant's.
    """
    if tokenizer.chat_template is None:
        raise InvalidArgument(
            f"{document.place}: has messages, but the model's tokenizer has no chat template; add "
            "one, or use records with text"
        )
    if not tokenizer.is_fast:
        raise InvalidArgument(
            f"{document.place}: has messages, but the model's tokenizer cannot say where its "
            "tokens are; use one with a tokenizer.json, or records with text"
        )
    messages = document.messages or []
    text = ""
    turns: list[tuple[int, int]] = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        upto = _templated(document, tokenizer, messages[: turn + 1], False)
        begin = _turn_begins(document, tokenizer, messages[: turn + 1], upto)
        if begin is None or begin < len(text) or not upto.startswith(text):
            raise InvalidArgument(
                f"{document.place}: the tokenizer's chat template rewrites earlier turns when turn "
                f"{turn + 1} is added; use a template that only appends"
            )
        turns.append((begin, len(upto)))
        text = upto
    marks = np.zeros(len(text) + 1, np.int64)  # marks[i]: the assistant's characters before i.
    for begin, end in turns:
        marks[begin + 1 : end + 1] = 1
    marks = np.cumsum(marks)
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    begins, ends = np.array(found["offset_mapping"], np.int64).reshape(-1, 2).T
    # Some tokenizers leave spaces out of a token's span, so a token begins where the last ended.
    begins = np.minimum(begins, np.maximum.accumulate(np.append(0, ends))[:-1])
    return np.array(found["input_ids"], np.int32), marks[ends] > marks[begins]


def _turn_begins(document: Document, tokenizer: Any, messages: list, upto: str) -> int | None:
    """Find the begin of the last turn in the text `upto`; None if earlier turns were rewritten.

    A turn begins after the generation prompt if the template uses it, else at its content.
    """
    earlier, last = messages[:-1], messages[-1]
    before = ""
    if earlier:
        before, prompt = (_templated(document, tokenizer, earlier, p) for p in (False, True))
        if prompt != before and upto.startswith(prompt):
            return len(prompt)
        if not upto.startswith(before):
            return None
    marked = _templated(document, tokenizer, [*earlier, {**last, "content": _MARK}], False)
    begin = marked.find(_MARK, len(before))
    if begin < 0:
        raise InvalidArgument(
            f"{document.place}: the tokenizer's chat template leaves out the content of turn "
            f"{len(messages)}; use a template that writes every message"
        )
    return begin if upto.startswith(marked[:begin]) else None


def _templated(document: Document, tokenizer: Any, messages: list, prompt: bool) -> str:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, strftime_now=_DAY.strftime
        )
    except (TemplateError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgument(
            f"{document.place}: the tokenizer's chat template rejects the messages, {reason}"
        ) from None
