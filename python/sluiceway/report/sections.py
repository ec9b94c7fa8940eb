"""Draws the charts of the page, section by section."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.report import units
from sluiceway.report.bars import kinds_legend, memory_bars, timeline
from sluiceway.report.chart import Line, line_chart
from sluiceway.report.records import LINKS, TIERS, RunRecord
from sluiceway.report.tables import step_table

_SMOOTHED = 25  # Windows of the running mean in the longest run.
_TITLES = {
    "d2h": "device to host (d2h)",
    "h2d": "host to device (h2d)",
    "disk_read": "disk to host (disk_read)",
    "disk_written": "host to disk (disk_written)",
    "device": "device",
    "host": "host",
    "pinned": "pinned: page-locked host memory",
    "disk": "disk: the store",
    "process": "process: resident set",
}
_X: dict[str, tuple[str, Callable]] = {
    "steps": ("step", units.count),
    "tokens": ("tokens", units.count),
    "seconds": ("time in steps", units.seconds),
}


def loss(runs: list[RunRecord], points: int) -> str:
    """Chart training and held-out loss over steps, tokens and time."""
    charts = []
    for x, title in (("steps", "steps"), ("tokens", "tokens"), ("seconds", "wall-clock time")):
        lines = _lines(runs, "loss", points, x, smooth=True)
        for place, run in enumerate(runs):
            if (curve := run.curves.get("eval_loss")) is not None:
                thin = curve.thinned(points)
                name = f"{run.name}, held out"
                lines.append(Line(place, name, "dots", getattr(thin, x), thin.values))
        charts.append(
            line_chart(
                f"Loss over {title}, nats per token", lines, *_X[x], units.number, may_be_log=True
            )
        )
    window = _window(runs)
    means = f", thick lines their mean over {window} steps, thin lines every step" if window else ""
    held = any("eval_loss" in run.curves for run in runs)
    dots = "dashed lines with markers: held-out loss" if held else "held-out loss: never measured"
    text = (
        f"Solid lines: training loss{means}; {dots}. Time counts steps, not evaluations or saves."
    )
    return _section(charts, text)


def throughput(runs: list[RunRecord], points: int) -> str:
    """Chart tokens per second, seconds per step, and the shares of stalls and waiting for data."""
    charts = [
        _chart(runs, "tokens_per_second", "Tokens per second", units.rate, points, smooth=True),
        _chart(runs, "seconds", "Seconds per step", units.seconds, points, smooth=True),
        _chart(runs, "stall_share", "Stall share of a step", units.share, points, smooth=True),
    ]
    text = "Stall: the device was idle because it waited for a link or the host."
    if any("data_share" in run.curves for run in runs):  # Older runs did not measure it.
        title = "Share of a step spent waiting for data"
        charts.append(_chart(runs, "data_share", title, units.share, points, smooth=True))
    return _section(charts, text)


def links(runs: list[RunRecord], points: int) -> str:
    """Chart the bytes on every link that was used."""
    used = [link for link in LINKS if any(_peak(run, link) for run in runs)]
    if not used:
        return '<p class="none">Nothing crossed a link.</p>'
    charts = [_chart(runs, link, _TITLES[link], units.size, points) for link in used]
    idle = [link for link in LINKS if link not in used]
    return _section(charts, f"Nothing crossed: {', '.join(idle)}." if idle else "")


def memory(runs: list[RunRecord]) -> str:
    """Draw the peak of each tier as bars."""
    figures = []
    for tier in TIERS:
        peaks = [
            (place, run.name, (run.figures.get("peak_bytes") or {}).get(tier) or 0)
            for place, run in enumerate(runs)
        ]
        most = max(peak for _, _, peak in peaks)
        if most:
            figures.append(memory_bars(_TITLES[tier], peaks, most))
    empty = '<p class="none">No peak was measured.</p>'
    return f'<div class="charts">{"".join(figures)}</div>' if figures else empty


def optimizer(runs: list[RunRecord], points: int) -> str:
    """Chart learning rate, gradient norm, skipped steps, and metrics of single engines."""
    charts = [
        _chart(runs, "lr", "Learning rate", units.number, points),
        _chart(
            runs,
            "grad_norm",
            "Gradient norm",
            units.number,
            points,
            smooth=True,
            may_be_log=True,
        ),
    ]
    skipped = any(run.figures.get("skipped_steps") for run in runs)
    if skipped:
        title = "Skipped steps so far"
        charts.append(_chart(runs, "skipped_so_far", title, units.count, points))
    own = {name: title for run in runs for name, title in run.own_metrics.items()}
    for name, title in own.items():
        if any(_changes(run, name) for run in runs):
            charts.append(_chart(runs, name, title, units.number, points, smooth=True))
    return _section(charts, "" if skipped else "No step was skipped.")


def step(runs: list[RunRecord]) -> str:
    """Draw the lanes of one step for every run that has a trace."""
    traced = [run for run in runs if run.step is not None]
    if not traced:
        return '<p class="none">No run has a trace with a step in it (config: trace).</p>'
    long = max(run.step.seconds for run in traced)
    parts = [
        "<p>A step of ordinary length from the middle of the trace. Each row is a lane; all runs "
        "have the same scale. At the beginning, the lanes host, h2d and apply (or fetch, host, "
        "store and h2d) still work on the previous step.</p>",
        kinds_legend([run.step for run in traced]),
    ]
    for run in traced:
        one = run.step
        title = f"{run.name}: {one.name}, {units.seconds(one.seconds)}"
        if one.steps < run.figures["steps"]:
            title += f" (the trace holds {one.steps} of {run.figures['steps']} steps)"
        parts += [timeline(one, title, long), step_table(one, run.name)]
    missing = [run.name for run in runs if run.step is None]
    if missing:
        parts.append(f'<p class="none">Without a trace: {", ".join(missing)}.</p>')
    return "".join(parts)


def _section(charts: list[str], text: str) -> str:
    said = f'<p class="soft">{text}</p>' if text else ""
    return f'{said}<div class="charts">{"".join(charts)}</div>'


def _peak(run: RunRecord, name: str) -> float:
    curve = run.curves.get(name)
    return max(curve.finite, default=0) if curve is not None else 0


def _changes(run: RunRecord, name: str) -> bool:
    """Tell whether a curve has more than one value."""
    curve = run.curves.get(name)
    return curve is not None and len(set(curve.finite)) > 1


def _window(runs: list[RunRecord]) -> int:
    """Steps in a running mean; 0 if the runs are too short for one."""
    window = max(run.figures["steps"] for run in runs) // _SMOOTHED
    return window if window > 1 else 0


def _lines(
    runs: list[RunRecord], name: str, points: int, x: str, smooth: bool = False
) -> list[Line]:
    window, lines = _window(runs) if smooth else 0, []
    for place, run in enumerate(runs):
        curve = run.curves.get(name)
        if curve is None:
            continue
        thin = curve.thinned(points)
        if window:
            lines.append(Line(place, "", "thin", getattr(thin, x), thin.values))
            thin = curve.smoothed(window).thinned(points)
        lines.append(Line(place, run.name, "line", getattr(thin, x), thin.values))
    return lines


def _chart(
    runs: list[RunRecord],
    name: str,
    title: str,
    text: Callable,
    points: int,
    smooth: bool = False,
    may_be_log: bool = False,
) -> str:
    lines = _lines(runs, name, points, "steps", smooth)
    return line_chart(title, lines, *_X["steps"], text, from_zero=True, may_be_log=may_be_log)
