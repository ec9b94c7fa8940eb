"""The page: sections, tables and charts of the runs, and the numbers behind them as JSON."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from sluiceway import __version__
from sluiceway.report import sections, tables
from sluiceway.report.chart import colour, marker
from sluiceway.report.records import RunRecord

# Points of a curve; fewer with many runs, so that the page stays small.
_POINTS, _ALL_RUNS_POINTS = 1000, 4000
# Tells the browser that the page loads nothing and runs no script.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def make_page(runs: list[RunRecord], written: str) -> str:
    """Make the whole HTML text.

    Parameters
    ----------
    written : str
        Time of the report, as text.
    """
    points = max(100, min(_POINTS, _ALL_RUNS_POINTS // len(runs)))
    names = ", ".join(run.name for run in runs)
    body = [
        ("summary", "Summary", tables.summary(runs)),
        ("loss", "Loss", sections.loss(runs, points)),
        ("throughput", "Throughput", sections.throughput(runs, points)),
        ("links", "Bytes per link and step", sections.links(runs, points)),
        ("memory", "Peak memory per tier", sections.memory(runs)),
        ("rate", "Learning rate, gradient norm, skipped steps", sections.optimizer(runs, points)),
        ("step", "One step", sections.step(runs)),
        ("config", "Config", tables.config(runs)),
        ("origin", "Versions and machine", tables.origin(runs)),
    ]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in body)
    parts = [
        f"<h1>{escape(names)}</h1>",
        f'<p class="soft">Sluiceway {__version__}, report of {escape(written)}</p>',
        _legend(runs) if len(runs) > 1 else "",
        _notes(runs),
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
        *(
            f'<section aria-labelledby="{key}"><h2 id="{key}">{title}</h2>{text}</section>'
            for key, title, text in body
        ),
    ]
    style = Path(__file__).with_name("page.css").read_text()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(names)} - Sluiceway</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header>{parts[0]}{parts[1]}{parts[2]}</header>\n<main>\n"
        + "\n".join(parts[3:])
        + f'\n</main>\n<script type="application/json" id="data">{_data(runs, points)}</script>\n'
        "</body>\n</html>\n"
    )


def _legend(runs: list[RunRecord]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="line {colour(place)}" '
        f'd="M0 5h26"/>{marker(place, 13, 5)}</svg>{escape(run.name)}</li>'
        for place, run in enumerate(runs)
    )
    return f'<ul class="legend" aria-label="Runs">{items}</ul>'


def _notes(runs: list[RunRecord]) -> str:
    said = [f"{run.name}: {note}" for run in runs for note in run.notes + _about(run)]
    if not said:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in said)
    return f'<div class="notes" role="note"><ul>{items}</ul></div>'


def _about(run: RunRecord) -> list[str]:
    """Notes for the reader that follow from the run's numbers."""
    notes, steps = [], run.setting("train", "steps")
    of = f" of {steps}" if steps else ""
    if run.status != "done":
        notes.append(f"{run.status}, after step {run.figures['steps']}{of}")
    loss = run.curves.get("loss")
    gaps = [s for s, v in zip(loss.steps, loss.values, strict=True) if v is None] if loss else []
    if gaps:
        some = ", ".join(map(str, gaps[:5])) + (", ..." if len(gaps) > 5 else "")
        notes.append(f"the loss is not finite in {len(gaps)} steps: {some}")
    return notes


def _data(runs: list[RunRecord], points: int) -> str:
    """Make JSON that is safe inside of a script element."""
    tree = {"sluiceway": __version__, "runs": [_run_data(run, points) for run in runs]}
    text = json.dumps(tree, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _run_data(run: RunRecord, points: int) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "status": run.status,
        "notes": run.notes + _about(run),
        "figures": run.figures,
        "config": run.config,
        "summary": run.summary,
        "curves": {name: _columns(run, name, points) for name in run.curves},
        "step": tables.lane_figures(run.step) if run.step else None,
    }


def _columns(run: RunRecord, name: str, points: int) -> dict[str, list]:
    curve = run.curves[name].thinned(points)
    columns = {"step": curve.steps}
    if name in ("loss", "eval_loss"):
        columns |= {"tokens": curve.tokens, "seconds": [_rounded(s) for s in curve.seconds]}
    return columns | {"value": [_rounded(value) for value in curve.values]}


def _rounded(value: float | int | None) -> float | int | None:
    """Round to the seven digits of a float32."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
