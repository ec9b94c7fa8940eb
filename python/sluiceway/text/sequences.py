"""Cuts the tokens of documents into sequences, each with at least one token to learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sluiceway.config.schema import DataSection
from sluiceway.errors import InvalidArgument
from sluiceway.text.documents import Corpus, Document
from sluiceway.text.tokens import tokenise

IGNORED = -100  # The label that torch's cross entropy leaves out.
_SHOWN_PARTS = 12  # Of a sequence that is shown; of each part this many characters at both ends.
_SHOWN_ENDS = 200


@dataclass(frozen=True)
class Sequences:
    """Token sequences in one flat array, in memory or mapped from a file.

    `tokens` and `learned` are parallel; sequence k is [starts[k], starts[k] + lengths[k]).
    """

    tokens: np.ndarray  # int32
    learned: np.ndarray  # bool: whether this token is predicted.
    starts: np.ndarray
    lengths: np.ndarray
    # Where each document starts in `tokens`, if no document of a sequence sees another.
    documents: np.ndarray | None = None
    cut: int = 0  # Documents that were cut because of their length.
    left_out: int = 0  # Documents without packing that are too long, or have nothing to learn.
    unused: int = 0  # Tokens with packing that are in no sequence.

    def __len__(self) -> int:
        return len(self.starts)

    def learned_tokens(self, first: int = 0) -> np.ndarray:
        """Count the tokens of each sequence with a mark, from its token `first` on."""
        return np.array(
            [
                np.count_nonzero(self.learned[start + first : start + size])
                for start, size in zip(self.starts, self.lengths, strict=True)
            ],
            np.int64,
        )

    def positions(self, k: int) -> np.ndarray:
        """Place of each token of sequence k in the part of its document that is in the sequence."""
        at = np.arange(self.starts[k], self.starts[k] + self.lengths[k])
        first = self.documents[np.searchsorted(self.documents, at, side="right") - 1]
        return at - np.maximum(first, self.starts[k])

    @property
    def fingerprint(self) -> str:
        """Return sixteen hex digits that change with any token, mark or cut."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.learned, self.starts, self.lengths, self.documents):
            if array is not None:
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()[:16]


def make_sequences(
    corpus: Corpus, tokenizer: Any, data: DataSection, part: str, vocabulary: int
) -> Sequences:
    """Tokenise a corpus and cut it, as `data` says.

    With `packing`, all documents are joined and cut into sequences of `sequence_length` tokens; a
    shorter remainder is left out, unless there is nothing else. If it is "apart", the first token
    of a document is not learned, because nothing precedes it. Without packing, each document is a
    sequence of at most that length, and `overlong` says what becomes of a longer one.

    The part, "train" or "eval", is for errors. `vocabulary` counts the rows of the model's
    embedding; a token beyond them is an error.
    """
    stream = tokenise(corpus, tokenizer)
    tokens = stream.tokens
    if len(tokens) and tokens.max() >= vocabulary:
        raise InvalidArgument(
            f"data.{part}: the tokenizer gives token {tokens.max()}, but the model has only "
            f"{vocabulary} embeddings; use the tokenizer of this model"
        )
    length, cut = data.sequence_length, np.zeros(0, bool)
    if data.packing:
        size = min(length, max(1, len(tokens)))
        starts = np.arange(len(tokens) // size, dtype=np.int64) * size
        lengths = np.full(len(starts), size, np.int64)
    else:
        starts, lengths = np.cumsum(stream.lengths) - stream.lengths, stream.lengths
        longer = lengths > length
        if longer.any() and data.overlong == "refuse":
            _refuse_length(corpus.documents[np.argmax(longer)], lengths[np.argmax(longer)], length)
        kept = (lengths > 0) & ~longer if data.overlong == "drop" else lengths > 0
        starts, lengths, cut = starts[kept], np.minimum(lengths[kept], length), longer[kept]
    found = Sequences(tokens, stream.learned, starts, lengths)
    if data.packing == "apart":
        documents = (np.cumsum(stream.lengths) - stream.lengths)[stream.lengths > 0]
        marks = np.array(stream.learned)  # A copy: those of the stream may be a file's.
        marks[documents] = False
        found = replace(found, learned=marks, documents=documents)
    # The first token of a sequence cannot be predicted: no token precedes it.
    learns = found.learned_tokens(first=1) > 0
    if not learns.any():
        _refuse_all(len(tokens), int(stream.learned.sum()), data, part)
    starts, lengths = starts[learns], lengths[learns]
    if data.packing:
        unused = len(tokens) - int(lengths.sum())
        return replace(found, starts=starts, lengths=lengths, unused=unused)
    left_out = int(np.count_nonzero(stream.lengths)) - len(starts)
    cut_count = int(np.count_nonzero(cut[learns]))
    return replace(found, starts=starts, lengths=lengths, cut=cut_count, left_out=left_out)


def show_first(sequences: Sequences, tokenizer: Any) -> list[str]:
    """Return lines with the text of the first sequence; those that are learned begin with `>`.

    A change between learned and not learned begins a new line. Long parts are cut in the middle.
    """
    start, size = int(sequences.starts[0]), int(sequences.lengths[0])
    tokens, learned = (a[start : start + size] for a in (sequences.tokens, sequences.learned))
    edges = [0, *(np.flatnonzero(learned[1:] != learned[:-1]) + 1).tolist(), size]
    parts = list(pairwise(edges))
    lines = [f"the first sequence, {size:,} tokens; lines with > are learned:"]
    for begin, end in parts[:_SHOWN_PARTS]:
        text = tokenizer.decode(tokens[begin:end].tolist(), clean_up_tokenization_spaces=False)
        if len(text) > 2 * _SHOWN_ENDS:
            left_out = len(text) - 2 * _SHOWN_ENDS
            text = f"{text[:_SHOWN_ENDS]} [{left_out:,} characters] {text[-_SHOWN_ENDS:]}"
        lines += [("  > " if learned[begin] else "    ") + s for s in text.splitlines()]
    if len(parts) > _SHOWN_PARTS:
        lines.append(f"    [{len(parts) - _SHOWN_PARTS:,} more parts]")
    return lines


def _refuse_all(tokens: int, learned: int, data: DataSection, part: str) -> None:
    length = data.sequence_length
    expected = "at least 2" if data.packing else "at least 2 in a document"
    if data.overlong == "drop" and not data.packing and tokens > length:
        raise InvalidArgument(
            f"data.{part}: no document of at most {length} tokens has something to learn, and "
            "data.overlong: drop leaves the others out; expected a larger data.sequence_length"
        )
    if learned > 1 and not data.packing:
        raise InvalidArgument(
            f"data.{part}: all that is learned lies behind the first {length} tokens of its "
            "document, expected a larger data.sequence_length"
        )
    raise InvalidArgument(
        f"data.{part}: {tokens} tokens in all, expected {expected}, with something to "
        "learn behind the first; use more text"
    )


def _refuse_length(document: Document, count: int, length: int) -> None:
    raise InvalidArgument(
        f"{document.place}: {count} tokens, expected at most data.sequence_length, {length}; set "
        "data.packing: true to cut it, or data.overlong to truncate or drop"
    )
