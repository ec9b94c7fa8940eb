"""Models and texts of the experiment, in sequences of bytes.

A task is a base model that has read Python source, and a text that it has not: the English of
`pydoc_data.topics`, or the C++ of torch's own headers: both are on every machine that can run this.
Each text has three parts: training, `pick` (learning rates are chosen on it) and `final` (what the
tables show). Training shares no document with the others, and all long lines are different.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sluiceway.text.documents import Corpus, Document, pydoc_text
from sluiceway.text.sequences import Sequences, make_sequences
from transformers import AutoModelForCausalLM, AutoTokenizer

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = {
    "small": REPOSITORY / "experiments/fidelity/model",  # 1.2 M weights in its blocks.
    "quickstart": REPOSITORY / "experiments/quickstart/model",  # 3.0 M.
}
SHIFTS = ("prose", "cpp")
LENGTH = 256
_CPP_FOLDERS = ("ATen", "c10")
_CPP_LONGEST_FILE = 32_768  # One table of constants must not become the held-out text.
_CPP_TRAIN_BYTES = 600_000
_CPP_HELD_OUT_BYTES = 130_000


@dataclass(frozen=True)
class Text:
    """Sequences of LENGTH bytes."""

    train: Sequences
    pick: Sequences
    final: Sequences


def load_model(name: str) -> torch.nn.Module:
    """The base model in fp32; the embedding, tied to the head, is frozen."""
    model = AutoModelForCausalLM.from_pretrained(MODELS[name], dtype=torch.float32)
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


@functools.cache
def load_text(shift: str) -> Text:
    """Read and cut one of SHIFTS."""
    train, held_out = _prose() if shift == "prose" else _cpp()
    tokenizer = AutoTokenizer.from_pretrained(MODELS["quickstart"])

    def cut(texts: list[str]) -> Sequences:
        corpus = Corpus([Document(f"{shift}:{i}", text) for i, text in enumerate(texts)])
        return make_sequences(corpus, tokenizer, LENGTH, True, "train", len(tokenizer))

    rest = cut(held_out)
    half = len(rest) // 2  # At most one document has a part on either side.
    return Text(
        cut(train), _chosen(rest, np.arange(half)), _chosen(rest, np.arange(half, 2 * half))
    )


def _prose() -> tuple[list[str], list[str]]:
    return pydoc_text("train"), pydoc_text("eval")


def _cpp() -> tuple[list[str], list[str]]:
    """Headers in an order that depends on their names alone: held out first, then trained on."""
    include = Path(torch.__file__).parent / "include"
    files = [f for folder in _CPP_FOLDERS for f in (include / folder).rglob("*.h")
             if f.parent.name != "ops" and f.stat().st_size <= _CPP_LONGEST_FILE]  # fmt: skip

    def place(file: Path) -> str:
        return hashlib.sha256(file.relative_to(include).as_posix().encode()).hexdigest()

    parts: dict[int, list[str]] = {_CPP_HELD_OUT_BYTES: [], _CPP_TRAIN_BYTES: []}
    seen: set[str] = set()
    for file in sorted(files, key=place):
        wanted = next((size for size, texts in parts.items() if sum(map(len, texts)) < size), None)
        if wanted is None:
            break
        lines = file.read_text(errors="replace").splitlines()
        if any("@generated" in line for line in lines[:3]):
            continue
        # Headers repeat their licences and variants of a kernel: a long line is kept once.
        kept = [line for line in lines if len(line) < 40 or line not in seen]
        seen.update(kept)
        parts[wanted].append("\n".join(kept))
    return parts[_CPP_TRAIN_BYTES], parts[_CPP_HELD_OUT_BYTES]


def _chosen(sequences: Sequences, which: np.ndarray) -> Sequences:
    return Sequences(sequences.tokens, sequences.learned, sequences.starts[which],
                     sequences.lengths[which])  # fmt: skip


def first_sequences(sequences: Sequences, count: int) -> Sequences:
    """That many, evenly spread over all of them."""
    spread = np.linspace(0, len(sequences) - 1, min(count, len(sequences)))
    return _chosen(sequences, spread.astype(np.int64))
