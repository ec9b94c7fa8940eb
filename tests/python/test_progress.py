"""What a person sees on a terminal while a run goes on."""

from __future__ import annotations

import io

from report_pages import line_of
from sluiceway.run.progress import Progress


class Terminal(io.StringIO):
    """A text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_gets_one_table_with_a_line_for_each_figure(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress("subspace", 3, 0.125, out) as progress:
        for step in (1, 2, 3):
            progress(line_of(step, eval_loss=0.0))
        figures = progress.figures()
    last = out.getvalue().rpartition("subspace\n")[2].splitlines()
    rows = dict(line.split(maxsplit=1) for line in last if len(line.split()) > 1)
    assert rows["step"] == figures["step"] == "3/3"
    assert rows["held-out"] == "0.0000"
    assert rows["native"] == "50%"
    assert rows["d2h/h2d"] == "4 KiB/2 KiB"
    starts = {line.index(line.split(maxsplit=1)[1]) for line in last if len(line.split()) > 1}
    assert len(starts) == 1
