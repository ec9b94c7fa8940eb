"""What `sluiceway doctor` finds: one line, with what a missing thing costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, SLOW, MISSING = "ok", "slow", "missing"


@dataclass(frozen=True)
class Finding:
    """One line.

    Parameters
    ----------
    verdict : str
        ok, slow or missing.
    advice : str
        What it costs, and what to do; empty where nothing is to be said.
    figures : dict
        The numbers of `found`, with units in their names.
    """

    name: str
    found: str
    verdict: str = OK
    advice: str = ""
    required: bool = False
    figures: dict[str, Any] = field(default_factory=dict)


def first_line(error: BaseException) -> str:
    """What an error says, as far as it fits into a line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def last_words(lines: list[str]) -> str:
    """Return what a process said last; of a crash, the line of Python that it was in."""
    crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    told = lines[crash:]
    own = next((i for i, line in enumerate(told) if line.startswith("Current thread")), 0)
    frames = (line.strip() for line in told[own:] if line.startswith('  File "'))
    return ", ".join([told[0], *list(frames)[:1]])
