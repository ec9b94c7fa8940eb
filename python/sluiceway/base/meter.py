"""How far a command has come: a bar on stderr when that is a terminal, nothing otherwise."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_SECONDS = 0.25


@contextlib.contextmanager
def meter(title: str, total: int, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield what is to be told how many more of `total` are done.

    Parameters
    ----------
    in_bytes : bool
        Show the count as bytes.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    counts = progress.DownloadColumn(True) if in_bytes else progress.MofNCompleteColumn()
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), counts)
    # Drawn by hand: a thread that refreshes would take time from what is measured.
    bar = progress.Progress(
        *columns,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    task = bar.add_task(title, total=total)
    shown = 0.0

    def advance(count: int) -> None:
        nonlocal shown
        bar.advance(task, count)
        if time.monotonic() - shown > _SECONDS:
            shown = time.monotonic()
            bar.refresh()

    with bar:
        yield advance
