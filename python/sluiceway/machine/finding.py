"""Findings of `sluiceway doctor`: one line each, with the cost of what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, SLOW, MISSING = "ok", "slow", "missing"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Parameters
    ----------
    verdict : str
        ok, slow or missing.
    advice : str
        The cost, and what to do about it; may be empty.
    figures : dict
        The numbers in `found`, with units in their names.
    """

    name: str
    found: str
    verdict: str = OK
    advice: str = ""
    required: bool = False
    figures: dict[str, Any] = field(default_factory=dict)


def last_words(lines: list[str]) -> str:
    """Last line that a process printed; after a crash, the error and the line of Python."""
    crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    told = lines[crash:]
    own = next((i for i, line in enumerate(told) if line.startswith("Current thread")), 0)
    frames = (line.strip() for line in told[own:] if line.startswith('  File "'))
    return ", ".join([told[0], *list(frames)[:1]])
