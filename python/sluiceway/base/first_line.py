"""The first line of an error, for texts that quote it."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line that is not blank, or the error's type if there is none."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return next(lines, type(error).__name__)
