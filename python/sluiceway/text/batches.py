"""Batches of a run: a pure function of (seed, position), made ahead of the steps that use them."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from sluiceway.base.side_thread import side_thread
from sluiceway.config.schema import PYDOC, Config, DataSection, TrainSection
from sluiceway.text.documents import KINDS, read_corpora
from sluiceway.text.sequences import IGNORED, Sequences, make_sequences

_AHEAD = 4  # Batches that may wait for their step.
_UNUSED = 0.01  # Share of the tokens above which those that are in no sequence are counted.


@dataclass(frozen=True)
class Batch:
    """One micro-batch, on the host."""

    # input_ids, labels; where lengths differ, attention_mask; of documents apart, position_ids.
    inputs: dict[str, torch.Tensor]
    tokens: int  # Count without padding.
    learned: int  # Count of tokens that are predicted.


def load_sequences(
    config: Config, tokenizer: Any, vocabulary: int
) -> tuple[Sequences, Sequences | None, dict[str, int]]:
    """Read what `config.data` names: training, held-out (None if there is none), and counts."""
    found: dict[str, Sequences] = {}
    counts = {"replaced_bytes": 0}
    for part, corpus in zip(("train", "eval"), read_corpora(config.data), strict=True):
        if corpus is None:
            continue
        found[part] = made = make_sequences(corpus, tokenizer, config.data, part, vocabulary)
        counts["replaced_bytes"] += corpus.replaced
        each = corpus.kinds() | {
            "files": corpus.files,
            "documents": len(corpus.documents),
            "sequences": len(made),
            "tokens": int(made.lengths.sum()),
            "learned": int(made.learned_tokens().sum()),
            "cut": made.cut,
            "left_out": made.left_out,
            "unused_tokens": made.unused,
        }
        counts |= {f"{part}_{name}": count for name, count in each.items()}
    return found["train"], found.get("eval"), counts


def describe_sequences(data: DataSection, counts: dict[str, int]) -> list[str]:
    """Say what was found, a line for each part."""
    return [
        _described(data, counts, part) for part in ("train", "eval") if f"{part}_tokens" in counts
    ]


def describe_length(train: TrainSection, sequences: Sequences) -> str:
    """Say how many steps a run has, and how often it sees each sequence."""
    each = train.micro_batch * train.accumulate
    epochs = train.steps * each / len(sequences)
    steps, taken = _counted(train.steps, "steps"), _counted(each, "sequences")
    return f"{steps} of {taken}: {epochs:.3g} epochs"


def _counted(count: int, plural: str) -> str:
    return f"{count:,} {plural if count != 1 else plural[:-1]}"


def _described(data: DataSection, counts: dict[str, int], part: str) -> str:
    kinds = [_counted(counts[f"{part}_{k}"], k) for k in KINDS if f"{part}_{k}" in counts]
    files = counts[f"{part}_files"]
    where = f" in {_counted(files, 'files')}" if files else ""
    is_full = data.packing and counts[f"{part}_tokens"] >= data.sequence_length
    size = f"{'' if is_full else 'at most '}{data.sequence_length:,} tokens"
    share = counts[f"{part}_learned"] / counts[f"{part}_tokens"]
    weighted = " as data.weights says" if part == "train" and data.weights else ""
    text = (
        f"{'data' if part == 'train' else 'held out'}: {', '.join(kinds)}{where}{weighted}; "
        f"{_counted(counts[f'{part}_sequences'], 'sequences')} of {size}"
    )
    if share < 1:
        text += f", {100 * share:.0f} % of the tokens learned"
    if cut := counts[f"{part}_cut"]:
        text += f"; cut because they are longer (data.overlong): {cut:,}"
    if left_out := counts[f"{part}_left_out"]:
        text += f"; left out because they are longer, or have nothing to learn: {left_out:,}"
    if (unused := counts[f"{part}_unused_tokens"]) > _UNUSED * counts[f"{part}_tokens"]:
        text += f"; tokens that do not fill a sequence and are left out: {unused:,}"
    if part == "eval" and (shared := sorted({*data.train} & {*data.eval} - {PYDOC})):
        text += f"; not held out: {', '.join(shared)}, which data.train has, too"
    return text


class Batches:
    """Micro-batch i of a run, for any i.

    Sequences are drawn without replacement, in an order that depends on (seed, epoch) alone; an
    epoch may end inside a micro-batch, so that no sequence is left out.
    """

    def __init__(self, sequences: Sequences, micro_batch: int, seed: int) -> None:
        self._sequences = sequences
        self._micro_batch = micro_batch
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def __getitem__(self, position: int) -> Batch:
        first = position * self._micro_batch
        return collate(self._sequences, [self._drawn(first + k) for k in range(self._micro_batch)])

    def _drawn(self, index: int) -> int:
        epoch, place = divmod(index, len(self._sequences))
        if epoch not in self._orders:
            generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
            # At most two epochs meet in one micro-batch; older orders are not needed again.
            self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = generator.permutation(len(self._sequences))
        return int(self._orders[epoch][place])


def in_order(sequences: Sequences, size: int, most: int | None = None) -> Iterator[Batch]:
    """Yield all sequences once, or the first `most`, in batches of `size`."""
    count = len(sequences) if most is None else min(most, len(sequences))
    for first in range(0, count, size):
        yield collate(sequences, list(range(first, min(first + size, count))))


def collate(sequences: Sequences, chosen: list[int]) -> Batch:
    """Put sequences side by side, shorter ones padded on the right."""
    lengths = sequences.lengths[chosen]
    width = int(lengths.max())
    ids = np.zeros((len(chosen), width), np.int64)
    labels = np.full((len(chosen), width), IGNORED, np.int64)
    for row, (start, size) in enumerate(zip(sequences.starts[chosen], lengths, strict=True)):
        tokens = sequences.tokens[start : start + size]
        ids[row, :size] = tokens
        labels[row, :size] = np.where(sequences.learned[start : start + size], tokens, IGNORED)
    inputs = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
    if sequences.documents is not None:
        positions = np.stack([sequences.positions(k) for k in chosen])
        inputs["position_ids"] = torch.from_numpy(positions)
    if (lengths != width).any():
        mask = np.arange(width)[None, :] < lengths[:, None]
        inputs["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
    learned = int(np.count_nonzero(labels[:, 1:] != IGNORED))
    return Batch(inputs, int(lengths.sum()), learned)


def joined(batches: Sequence[Batch]) -> Batch:
    """Put micro-batches side by side, shorter ones padded on the right."""
    if len(batches) == 1:
        return batches[0]
    rows: dict[str, list[torch.Tensor]] = defaultdict(list)
    for batch in batches:
        mask = torch.ones_like(batch.inputs["input_ids"])
        for name, tensor in {"attention_mask": mask, **batch.inputs}.items():
            rows[name].extend(tensor)
    inputs = {
        name: pad_sequence(each, batch_first=True, padding_value=IGNORED if name == "labels" else 0)
        for name, each in rows.items()
    }
    if inputs["attention_mask"].all():
        del inputs["attention_mask"]
    tokens, learned = (sum(getattr(b, n) for b in batches) for n in ("tokens", "learned"))
    return Batch(inputs, tokens, learned)


class Prefetch:
    """Makes batches in a thread of its own, a few ahead of the step.

    The thread stays on the core `cpu` if there is one. It ends with `close`.
    """

    def __init__(self, batches: Batches, position: int, cpu: int | None = None) -> None:
        self._thread = side_thread("sluiceway-data", cpu)
        submitted = partial(self._thread.submit, batches.__getitem__)
        self._coming = map(submitted, itertools.count(position))
        self._ready = deque(itertools.islice(self._coming, _AHEAD))

    def next(self) -> Batch:
        """Return the next batch in order, or raise the error that it was made with."""
        self._ready.append(next(self._coming))
        return self._ready.popleft().result()

    def close(self) -> None:
        """Drop the waiting batches, and wait for the thread to end."""
        self._thread.shutdown(cancel_futures=True)
