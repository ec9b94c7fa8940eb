"""Progress of a command: a bar on stderr if that is a terminal, otherwise nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_SECONDS = 0.25


@contextlib.contextmanager
def meter(title: str, total: int, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of items, of `total`, done since the last call.

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
    # Refreshed by hand: a refreshing thread would take time from the work that is measured.
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
