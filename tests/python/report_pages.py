"""Pages of `sluiceway report` as a reader and a machine get them, and folders to report on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """A report as a reader and a machine get it; refuses elements that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text()
        self.elements: list[tuple[str, dict]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == []
        self.data = json.loads(self.words["script"][0], parse_constant=pytest.fail)
        self.runs = {run["name"]: run for run in self.data["runs"]}

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes), (tag, attributes)
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.words.setdefault(self._open[-1], []).append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]

    def points(self, chart: str, look: str) -> list[tuple[int, int]]:
        """Points of the first curve of a look in a chart, in tenths, from the upper left."""
        svg = self.source.partition(f"<figcaption>{chart}")[2].partition("</figure>")[0]
        path = re.search(rf'class="{look} c\d+" transform="scale\(.1\)" d="([^"]*)"', svg).group(1)
        points = []
        for stretch in path.split("M")[1:]:
            first, _, rest = stretch.partition("l")
            numbers = [int(word) for word in rest.split()]
            points.append(tuple(map(int, first.split())))
            for dx, dy in list(zip(numbers[::2], numbers[1::2], strict=True))[1:]:
                points.append((points[-1][0] + dx, points[-1][1] + dy))
        return points


def line_of(step: int, **fields) -> dict:
    """A line of metrics of a step that took a quarter of a second."""
    return {
        "step": step, "loss": 3.0 - 0.1 * step, "lr": 0.001, "grad_norm": 1.5, "tokens": 64,
        "skipped": 0, "loss_scale": 1.0, "seconds": 0.25, "stall_seconds": 0.025,
        "data_seconds": 0.01,
        "bytes": {"d2h": 4096, "h2d": 2048, "disk_read": 0, "disk_written": 0},
        "peak_bytes": {"device": 3 << 20, "host": 2 << 20, "pinned": 1 << 20, "process": 9 << 20},
    } | fields  # fmt: skip


def write_run(folder: Path, lines: list[dict], events: list[dict] | None = None, **config) -> Path:
    """Write a run folder as a process that was killed leaves it."""
    folder.mkdir(parents=True)
    tree = {"model": {"path": "m"}, "train": {"steps": 100}, "engine": {"kind": "native"}, **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if events is not None:
        (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return folder


def report_on(sluiceway, folders: tuple[Path, ...], out: Path) -> Page:
    """Report on folders; parse the page."""
    outcome = sluiceway("report", *folders, "--out", out)
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return Page(out)


def console_of(page: Path, picture: Path) -> list[str]:
    """Draw a page in a browser; return what it wrote to the console."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "no chromium on PATH; make test installs it"
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--enable-logging=stderr", "--window-size=1200,1600", f"--screenshot={picture}",
         f"--user-data-dir={picture.parent / 'profile'}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]
