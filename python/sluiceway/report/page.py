"""The page: sections of charts and tables, and the numbers behind them as JSON."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from sluiceway import __version__
from sluiceway.base.json_text import json_text
from sluiceway.report import charts, tables
from sluiceway.run.run_record import LINKS, RunRecord

# Name, title and unit of the curves of a section.
_SPEED = (("tokens_per_second", "Tokens per second", "/s"), ("seconds", "Seconds per step", "s"),
          ("stall_share", "Stall share of a step", "%"),
          ("data_share", "Share of a step spent waiting for data", "%"))  # fmt: skip
_BYTES = (("d2h", "device to host (d2h)", "B"), ("h2d", "host to device (h2d)", "B"),
          ("disk_read", "disk to host (disk_read)", "B"),
          ("disk_written", "host to disk (disk_written)", "B"))  # fmt: skip
_RATE = (("lr", "Learning rate"), ("grad_norm", "Gradient norm"),
         ("skipped_so_far", "Skipped steps so far"))  # fmt: skip


def make_page(runs: list[RunRecord]) -> str:
    """Make the whole HTML text; the browser loads nothing, and runs only the scripts in it."""
    window, points = charts.fineness(runs)
    sections = _sections(runs, window)
    figures = [chart.figure for *_, drawn, _ in sections for chart in drawn if chart.figure]
    data = {"sluiceway": __version__, "runs": [run.plain(points) for run in runs]}
    page = jinja2.Template(Path(__file__).with_name("page.html").read_text(), autoescape=True)
    return page.render(
        runs=runs, sections=sections, version=__version__, plotly=get_plotlyjs(),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"), nonce=secrets.token_urlsafe(16),
        marks=[charts.mark(place) for place in range(len(runs))], shapes=charts.SHAPES,
        data=json_text(data).replace("<", "\\u003c"),  # No text can end the script element.
        figures=json_text(figures).replace("<", "\\u003c"),
    )  # fmt: skip


def _sections(runs: list[RunRecord], window: int) -> list[tuple]:
    """Return key, title, text, charts and tables of each section."""
    means = f", thick lines their mean over {window} steps, thin lines every step" * (window > 1)
    held_out = any("eval_loss" in run.curves for run in runs)
    dots = "dashed lines with markers: held-out loss" if held_out else "held-out loss: not measured"
    loss = [
        charts.curve_chart(runs, "loss", f"Loss over {words}, nats per token", x=x)
        for x, words in (("step", "steps"), ("tokens", "tokens"), ("seconds", "wall-clock time"))
    ]
    memory, used = charts.peak_charts(runs), _drawn(runs, _BYTES)
    idle = ", ".join(link for link in LINKS if not _is_drawn(runs, link))
    own = {name: title for run in runs for name, title in run.own_metrics.items()}
    long = max((run.step.seconds for run in runs if run.step), default=0.0)
    steps = [charts.step_chart(run, run.step, long) for run in runs if run.step]
    missing = ", ".join(run.name for run in runs if run.step is None)
    config = tables.config_tables(runs)
    return [
        ("summary", "Summary", "", [],
         [tables.side_by_side(runs, tables.key_figures, "Key figures of each run")]),
        ("loss", "Loss", f"Solid lines: training loss{means}; {dots}. Time counts steps, not "
         "evaluations or saves. Drag across a chart to zoom, double-click to zoom out.", loss, []),
        ("throughput", "Throughput", "Stall: the device was idle because it waited for a link or "
         "the host.", _drawn(runs, _SPEED), []),
        ("links", "Bytes per link and step", idle and f"Nothing crossed: {idle}.", used, []),
        ("memory", "Peak memory per tier", "" if memory else "No peak was measured.", memory, []),
        ("rate", "Learning rate, gradient norm, skipped steps",
         "" if _is_drawn(runs, "skipped_so_far") else "No step was skipped.",
         _drawn(runs, [*_RATE, *own.items()]), []),
        ("step", "One step", "A step of ordinary length from the middle of the trace. Each row is "
         "a lane; all runs have the same scale. At the beginning, the lanes host, h2d and apply "
         "(or fetch, host, store and h2d) still work on the previous step."
         + (missing and f" Without a trace: {missing}.") if steps
         else "No run has a trace with a step in it (config: trace).", steps,
         [tables.step_table(run.step, run.name) for run in runs if run.step]),
        ("config", "Config", "The runs have the same config." * (len(runs) > 1 == len(config)), [],
         config),
        ("origin", "Versions and machine", "", [],
         [tables.side_by_side(runs, tables.origin, "Where each run was made")]),
    ]  # fmt: skip


def _drawn(runs: list[RunRecord], curves: Any) -> list[charts.Chart]:
    return [charts.curve_chart(runs, *curve) for curve in curves if _is_drawn(runs, curve[0])]


def _is_drawn(runs: list[RunRecord], name: str) -> bool:
    """Tell whether a curve says something: an engine's own one changes, a link is used."""
    values = [set(run.curves[name].finite.tolist()) for run in runs if name in run.curves]
    if name in (*LINKS, "skipped_so_far"):
        return any(some - {0} for some in values)
    return any(len(some) > 1 for some in values) if "." in name else bool(values)
