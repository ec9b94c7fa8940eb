"""The English of Python's own reference manual: a text that every machine has."""

from __future__ import annotations

import hashlib

_REPEATED = 40  # Shorter paragraphs, such as headings, may occur in both parts.


def pydoc_text(part: str) -> list[str]:
    """Return the texts of `pydoc_data.topics` for a part, "train" or "eval".

    A hash of a topic's name decides whether it is held out, about one in eight, the same in every
    version of Python. The manual repeats itself across topics, so a paragraph is kept once, and
    never in both parts.
    """
    from pydoc_data.topics import topics

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
