"""Pages of `sluiceway report` as a reader and a machine get them, and folders to report on."""

from __future__ import annotations

import html
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
        data, figures = (
            json.loads(text, parse_constant=pytest.fail) for text in self.words["script"][:2]
        )
        self.runs = {run["name"]: run for run in data["runs"]}
        # A caption without a figure says that there is no finite value.
        drawn = re.findall(r'<figcaption>(.*?)</figcaption>\s*<div class="plot"', self.source)
        self.figures = dict(zip(map(html.unescape, drawn), figures, strict=True))

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

    def points(self, chart: str, dash: str = "solid") -> list[tuple[float, float]]:
        """Points of the first curve in a chart that is no mere background; gaps are left out."""
        (figure,) = (self.figures[title] for title in self.figures if title.startswith(chart))
        curve = next(
            one
            for one in figure["data"]
            if one["line"]["dash"] == dash and one["hoverinfo"] != "skip"
        )
        points = zip(curve["x"], curve["y"], strict=True)
        return [point for point in points if None not in point]


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
    done = _browse(page, picture.parent, "--hide-scrollbars", f"--screenshot={picture}")
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def touched(page: Path, script: str) -> dict:
    """Open a page in a browser with a script of the reader's hands; return what it resolves to."""
    source = page.read_text()
    nonce = re.search(r'<script nonce="([^"]+)">', source).group(1)
    inner = f"(async () => {{ {script} }})().then(told => document.title = JSON.stringify(told));"
    copy = page.with_name("touched.html")
    copy.write_text(source.replace("</body>", f'<script nonce="{nonce}">{inner}</script></body>'))
    done = _browse(copy, page.parent, "--virtual-time-budget=20000", "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout).group(1)))


def _browse(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "no chromium on PATH; make test installs it"
    return subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--window-size=1200,1600", f"--user-data-dir={folder / 'profile'}", *options,
         page.as_uri()],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
