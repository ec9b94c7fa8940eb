"""Documents as token sequences: tokenised, cut to length, with what is learned marked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluiceway.documents import Corpus, Document
from sluiceway.errors import InvalidArgument

IGNORED = -100  # The label that torch's cross entropy leaves out.


@dataclass(frozen=True)
class Sequences:
    """Token sequences in one flat array.

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
        """Sixteen hex digits that change when any token, mark or cut does."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.learned, self.starts, self.lengths):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def make_sequences(
    corpus: Corpus, tokenizer: Any, length: int, packing: bool, part: str, vocabulary: int
) -> Sequences:
    """Tokenise a corpus and cut it.

    Parameters
    ----------
    length : int
        Tokens of a sequence; with `packing` exactly, otherwise at most.
    packing : bool
        Join all documents and cut; a rest shorter than `length` is left out.
    part : str
        "train" or "eval", for errors.
    vocabulary : int
        Rows of the model's embedding; a token beyond them is an error.
    """
    pieces = [_tokens_of(document, tokenizer) for document in corpus.documents]
    kept = [
        (document, piece)
        for document, piece in zip(corpus.documents, pieces, strict=True)
        if len(piece[0])
    ]
    if not packing:
        for document, (tokens, _) in kept:
            _check_length(document, len(tokens), length)
    tokens = np.concatenate([piece[0] for _, piece in kept] or [np.zeros(0, np.int32)])
    learned = np.concatenate([piece[1] for _, piece in kept] or [np.zeros(0, bool)])
    if len(tokens) and tokens.max() >= vocabulary:
        raise InvalidArgument(
            f"data.{part}: the tokenizer gives token {tokens.max()}, the model has {vocabulary} "
            "embeddings; expected a tokenizer made for this model"
        )
    lengths = np.array([len(piece[0]) for _, piece in kept], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    if packing:
        starts = np.arange(len(tokens) // length, dtype=np.int64) * length
        lengths = np.full(len(starts), length, np.int64)
    return _with_something_to_learn(
        Sequences(tokens, learned, starts, lengths), length, packing, part
    )


def _with_something_to_learn(
    sequences: Sequences, length: int, packing: bool, part: str
) -> Sequences:
    # The first token of a sequence has nothing before it to be predicted from.
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
            f"data.{part}: {len(sequences.tokens)} tokens in all, expected {expected}; give more "
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


def _tokens_of(document: Document, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    if document.messages is not None:
        ids, learned = _conversation(document, tokenizer)
        return np.array(ids, np.int32), np.array(learned, bool)
    if not document.text.strip():
        return np.zeros(0, np.int32), np.zeros(0, bool)
    ids = list(tokenizer(document.text, verbose=False)["input_ids"])
    end = tokenizer.eos_token_id
    if end is not None and ids[-1:] != [end]:
        ids.append(end)
    return np.array(ids, np.int32), np.ones(len(ids), bool)


def _conversation(document: Document, tokenizer: Any) -> tuple[list[int], list[bool]]:
    """Tokens of all turns up to the assistant's last, its own turns marked."""
    if tokenizer.chat_template is None:
        raise InvalidArgument(
            f"{document.place}: has messages, but the model's tokenizer has no chat template; "
            "expected one, or records with text"
        )
    messages = document.messages or []
    ids: list[int] = []
    learned: list[bool] = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _templated(document, tokenizer, messages[:turn], True) if turn else []
        upto = _templated(document, tokenizer, messages[: turn + 1], False)
        if upto[: len(before)] != before or before[: len(ids)] != ids:
            raise InvalidArgument(
                f"{document.place}: the tokenizer's chat template rewrites earlier turns when turn "
                f"{turn + 1} is added, expected turns that only append"
            )
        learned += [False] * (len(before) - len(ids)) + [True] * (len(upto) - len(before))
        ids = upto
    return ids, learned


def _templated(document: Document, tokenizer: Any, messages: list, prompt: bool) -> list[int]:
    from jinja2 import TemplateError

    try:
        return list(
            tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=prompt, return_dict=False
            )
        )
    except (TemplateError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgument(
            f"{document.place}: the tokenizer's chat template refuses the messages, {reason}"
        ) from None
