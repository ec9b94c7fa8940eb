"""The base model's text: the source of the Python standard library, split by file.

The split leaves out `pydoc_data` (the demo fine-tunes on its text), `test`, `idlelib`, every folder
called test or tests, and each file that shares a run of SHINGLE_WORDS words with the fine-tuning
text (some docstrings repeat sentences of the reference manual).
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EXCLUDED_TOP = frozenset({"pydoc_data", "test", "idlelib", "site-packages"})
EXCLUDED_ANYWHERE = frozenset({"test", "tests", "__pycache__"})
SHINGLE_WORDS = 12
HELD_OUT_ONE_IN = 20
END_OF_TEXT_ID = 256


@dataclass(frozen=True)
class Corpus:
    """File names (relative to the standard library) and token streams of the two parts."""

    train_files: tuple[str, ...]
    held_out_files: tuple[str, ...]
    shared_files: tuple[str, ...]  # Left out for sharing a run of words with the topics.
    train: np.ndarray  # int64; bytes of the files, END_OF_TEXT_ID after each.
    held_out: np.ndarray


def candidate_files(root: Path) -> list[Path]:
    """Return the source files that may be used, in a fixed order."""
    files = []
    for path in sorted(root.rglob("*.py")):
        folders = path.relative_to(root).parts[:-1]
        if folders and folders[0] in EXCLUDED_TOP:
            continue
        if not EXCLUDED_ANYWHERE.intersection(folders):
            files.append(path)
    return files


def shingles(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every run of SHINGLE_WORDS words; layout, case and punctuation are ignored."""
    words = re.findall(r"\w+", text.lower())
    for start in range(len(words) - SHINGLE_WORDS + 1):
        yield tuple(words[start : start + SHINGLE_WORDS])


def fine_tuning_shingles() -> frozenset[tuple[str, ...]]:
    """Return the runs of words in the demo's fine-tuning text."""
    from pydoc_data.topics import topics

    return frozenset(run for text in topics.values() for run in shingles(text))


def is_held_out(name: str) -> bool:
    """Decide by the hash of the relative name, so the split needs no list and no seed."""
    return hashlib.sha256(name.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def encode(texts: list[bytes]) -> np.ndarray:
    """Join texts into one token stream."""
    end = np.array([END_OF_TEXT_ID], dtype=np.int64)
    parts = [part for t in texts for part in (np.frombuffer(t, np.uint8).astype(np.int64), end)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def load_corpus(root: Path | None = None) -> Corpus:
    """Read, filter and split the standard library of the running interpreter."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    forbidden = fine_tuning_shingles()
    names: dict[str, list[str]] = {"train": [], "held_out": [], "shared": []}
    texts: dict[str, list[bytes]] = {"train": [], "held_out": [], "shared": []}
    for path in candidate_files(root):
        name = path.relative_to(root).as_posix()
        raw = path.read_bytes()
        if any(run in forbidden for run in shingles(raw.decode("utf-8", "replace"))):
            part = "shared"
        else:
            part = "held_out" if is_held_out(name) else "train"
        names[part].append(name)
        texts[part].append(raw)
    return Corpus(
        tuple(names["train"]),
        tuple(names["held_out"]),
        tuple(names["shared"]),
        encode(texts["train"]),
        encode(texts["held_out"]),
    )
