"""Models and texts of the experiment, in sequences of bytes.

A task is a base model trained on Python source, and a text it has not read: the English of
`pydoc_data.topics`, the C++ of torch's own headers, or the Perl of Debian's own modules. Every
machine that can run this has the first two; `perl-modules-5.36` has the third. Each text has three
parts: training, `pick` (learning rates are chosen on it) and `final` (what the tables show).
Training shares no document with the others, and all long lines are different.

    python -m experiments.fidelity.tasks    # makes the small base model, in half an hour
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sluiceway.config.schema import DataSection
from sluiceway.text.documents import Corpus, Document
from sluiceway.text.pydoc_text import pydoc_text
from sluiceway.text.sequences import Sequences, make_sequences
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.harness import REPOSITORY

MODELS = {
    "small": REPOSITORY / "runs/fidelity/small",  # 1.2 M weights in its blocks; made when needed.
    "quickstart": REPOSITORY / "experiments/quickstart/model",  # 3.0 M weights in its blocks.
}
SMALL_STEPS = 1400
SHIFTS = ("prose", "cpp", "perl")
LENGTH = 256
_LONGEST_FILE = 32_768  # Otherwise one table of constants could become the held-out text.
_CPP_FOLDERS = ("ATen", "c10")
_CPP_TRAIN_BYTES = 600_000
_CPP_HELD_OUT_BYTES = 130_000
PERL = Path("/usr/share/perl/5.36")
_PERL_TABLES = ("Unicode", "unicore")
_PERL_HELD_OUT_BYTES = 65_000  # Sequences of `pick`, and of `final`.
_PERL_TRAIN_BYTES = 900_000  # So 3,000 steps of 256 bytes read no byte twice.


@dataclass(frozen=True)
class Text:
    """Sequences of LENGTH bytes."""

    train: Sequences
    pick: Sequences
    final: Sequences


def load_model(name: str) -> torch.nn.Module:
    """Load one of MODELS in fp32, ready for training.

    Raises
    ------
    FileNotFoundError
        The small model has not been made.
    """
    if not (MODELS[name] / "model.safetensors").exists():
        raise FileNotFoundError(
            f"{MODELS[name]}: the {name} base model is missing. Make it in half an hour with "
            "`python -m experiments.fidelity.tasks`."
        )
    return read_model(MODELS[name])


def read_model(folder: Path) -> torch.nn.Module:
    """Load the base model in fp32, with its embedding frozen; the head is tied to it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def make_model(folder: Path, steps: int) -> None:
    """Train a model of the small shape and store it, unless the folder has one.

    It has the same weights each time on one kind of machine.
    """
    if (folder / "model.safetensors").exists():
        return
    shape = ["--layers", "2", "--inner", "448", "--seed", "1"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        base, stored = Path(scratch) / "base", Path(scratch) / "stored"
        for command in (
            ["train_base", "--steps", str(steps), *shape, "--out", base],
            ["store_model", "--run", base, "--out", stored],
        ):
            program = [sys.executable, "-m", f"experiments.quickstart.{command[0]}"]
            subprocess.run([*program, *map(str, command[1:])], check=True, cwd=REPOSITORY)
        stored.rename(folder)


@functools.cache
def load_text(shift: str) -> Text:
    """Read one of SHIFTS and cut it into parts."""
    tokenizer = AutoTokenizer.from_pretrained(MODELS["quickstart"])

    data = DataSection(train=[shift], sequence_length=LENGTH)

    def cut(texts: list[str]) -> Sequences:
        corpus = Corpus([Document(f"{shift}:{i}", text) for i, text in enumerate(texts)])
        return make_sequences(corpus, tokenizer, data, "train", len(tokenizer))

    if shift == "perl":
        final, pick, train = _perl()
        return Text(cut(train), cut(pick), cut(final))
    train, held_out = _prose() if shift == "prose" else _cpp()
    rest = cut(held_out)
    half = len(rest) // 2  # At most one document is cut, so at most one has text on either side.
    return Text(
        cut(train), _chosen(rest, np.arange(half)), _chosen(rest, np.arange(half, 2 * half))
    )


def _prose() -> tuple[list[str], list[str]]:
    return pydoc_text("train"), pydoc_text("eval")


def _cpp() -> tuple[list[str], list[str]]:
    include = Path(torch.__file__).parent / "include"
    files = [f for folder in _CPP_FOLDERS for f in (include / folder).rglob("*.h")
             if f.parent.name != "ops"]  # fmt: skip
    held_out, train = parted(include, files, (_CPP_HELD_OUT_BYTES, _CPP_TRAIN_BYTES))
    return train, held_out


def _perl() -> list[list[str]]:
    sizes = (_PERL_HELD_OUT_BYTES, _PERL_HELD_OUT_BYTES, _PERL_TRAIN_BYTES)
    return parted(PERL, perl_modules(), sizes)


def perl_modules() -> list[Path]:
    """Debian's modules of Perl 5.36, without tables of characters."""
    files = [f for f in PERL.rglob("*.pm") if f.relative_to(PERL).parts[0] not in _PERL_TABLES]
    if not files:
        raise FileNotFoundError(
            f"tasks: {PERL} has no modules. On Debian 12 run `apt-get install perl-modules-5.36`."
        )
    return files


def parted(root: Path, files: Iterable[Path], sizes: Sequence[int]) -> list[list[str]]:
    """Deal files to parts that fill up in turn, in an order that depends on their names alone.

    No file is in two parts. Headers repeat licences and variants of a kernel, so a long line is
    kept once.
    """

    def place(file: Path) -> str:
        return hashlib.sha256(file.relative_to(root).as_posix().encode()).hexdigest()

    parts: list[list[str]] = [[] for _ in sizes]
    seen: set[str] = set()
    for file in sorted((f for f in files if f.stat().st_size <= _LONGEST_FILE), key=place):
        unfilled = (texts for size, texts in zip(sizes, parts, strict=True)
                    if sum(map(len, texts)) < size)  # fmt: skip
        wanted = next(unfilled, None)
        if wanted is None:
            break
        lines = file.read_text(errors="replace").splitlines()
        if any("@generated" in line for line in lines[:3]):
            continue
        kept = [line for line in lines if len(line) < 40 or line not in seen]
        seen.update(kept)
        wanted.append("\n".join(kept))
    return parts


def _chosen(sequences: Sequences, which: np.ndarray) -> Sequences:
    return Sequences(sequences.tokens, sequences.learned, sequences.starts[which],
                     sequences.lengths[which])  # fmt: skip


def first_sequences(sequences: Sequences, count: int) -> Sequences:
    """Choose `count` sequences, evenly spread over all of them."""
    spread = np.linspace(0, len(sequences) - 1, min(count, len(sequences)))
    return _chosen(sequences, spread.astype(np.int64))


if __name__ == "__main__":
    make_model(MODELS["small"], SMALL_STEPS)
    print(MODELS["small"])
