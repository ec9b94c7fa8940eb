"""Cuts the tokens of documents into sequences, each with at least one token to learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluiceway.errors import InvalidArgument
from sluiceway.text.documents import Corpus, Document
from sluiceway.text.tokens import tokenise

IGNORED = -100  # The label that torch's cross entropy leaves out.


@dataclass(frozen=True)
class Sequences:
    """Token sequences in one flat array, in memory or mapped from a file.

    `tokens` and `learned` are parallel; sequence k is [starts[k], starts[k] + lengths[k]).
    """

    tokens: np.ndarray  # int32
    learned: np.ndarray  # bool: whether this token is predicted.
    starts: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def fingerprint(self) -> str:
        """Return sixteen hex digits that change with any token, mark or cut."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.learned, self.starts, self.lengths):
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()[:16]


def make_sequences(
    corpus: Corpus, tokenizer: Any, length: int, packing: bool, part: str, vocabulary: int
) -> Sequences:
    """Tokenise a corpus and cut it.

    Parameters
    ----------
    length : int
        Tokens in a sequence; exactly with `packing`, otherwise at most.
    packing : bool
        Join all documents and cut; a remainder shorter than `length` is left out.
    part : str
        "train" or "eval", for errors.
    vocabulary : int
        Rows of the model's embedding; a token beyond them is an error.
    """
    stream = tokenise(corpus, tokenizer)
    tokens = stream.tokens
    kept = np.flatnonzero(stream.lengths)
    lengths = stream.lengths[kept]
    if not packing:
        for document, count in zip(kept, lengths, strict=True):
            _check_length(corpus.documents[document], count, length)
    if len(tokens) and tokens.max() >= vocabulary:
        raise InvalidArgument(
            f"data.{part}: the tokenizer gives token {tokens.max()}, but the model has only "
            f"{vocabulary} embeddings; use the tokenizer of this model"
        )
    starts = np.cumsum(lengths) - lengths
    if packing:
        starts = np.arange(len(tokens) // length, dtype=np.int64) * length
        lengths = np.full(len(starts), length, np.int64)
    return _with_something_to_learn(
        Sequences(tokens, stream.learned, starts, lengths), length, packing, part
    )


def _with_something_to_learn(
    sequences: Sequences, length: int, packing: bool, part: str
) -> Sequences:
    # The first token of a sequence cannot be predicted: no token precedes it.
    counts = np.array(
        [
            np.count_nonzero(sequences.learned[start + 1 : start + size])
            for start, size in zip(sequences.starts, sequences.lengths, strict=True)
        ],
        np.int64,
    )
    keep = counts > 0
    if not keep.any():
        expected = f"at least one sequence of {length}" if packing else "at least 2 in a document"
        raise InvalidArgument(
            f"data.{part}: {len(sequences.tokens)} tokens in all, expected {expected}; use more "
            "text or a smaller data.sequence_length"
        )
    return Sequences(
        sequences.tokens, sequences.learned, sequences.starts[keep], sequences.lengths[keep]
    )


def _check_length(document: Document, count: int, length: int) -> None:
    if count > length:
        raise InvalidArgument(
            f"{document.place}: {count} tokens, expected at most data.sequence_length, {length}; "
            "set data.packing: true to cut it"
        )
