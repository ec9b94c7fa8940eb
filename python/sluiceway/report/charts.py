"""Charts of the page, as figures for plotly."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

import numpy as np

from sluiceway.report import units
from sluiceway.run.curve import rounded
from sluiceway.run.run_record import TIERS, RunRecord
from sluiceway.run.trace_step import Range, StepTrace

# Colours that stand out on white and on black. With 5 shapes, 35 runs look different.
_COLOURS = ("#1f7fc0", "#cf5a0a", "#0d8f6d", "#b3549a", "#947612", "#6a6ae0", "#717c90")
SHAPES = {"circle": "●", "square": "■", "triangle-up": "▲", "diamond": "◆", "triangle-down": "▼"}
# Colours of ranges, by their lane or else by their name.
_RANGES = {
    "forward": "#3b7dbd", "backward": "#c8692f", "compress": "#117a65", "residual": "#c98a00",
    "calibrate": "#8a7a1a", "stall": "#c0392b", "optimizer step": "#9a5fb0", "d2h": "#b07a00",
    "host": "#5f6b80", "h2d": "#7a6ad0", "apply": "#4f9a3a", "other": "#7c8798",
}  # fmt: skip
_X = {"step": ("step", ""), "tokens": ("tokens", ""), "seconds": ("time in steps", "s")}
_TIERS = {tier: tier for tier in TIERS} | {"pinned": "pinned: page-locked host memory"}


class Chart(NamedTuple):
    """A figure with its caption, and its content in words; no figure where no value is finite."""

    title: str
    figure: dict[str, Any] | None
    words: str = ""


def curve_chart(
    runs: list[RunRecord], name: str, title: str, unit: str = "", x: str = "step"
) -> Chart:
    """Draw one curve of all runs; that of the loss has the held-out loss beside it."""
    (window, points), lines = fineness(runs), []
    smooth = window > 1 and unit != "B" and name not in ("lr", "skipped_so_far")
    for place, run in enumerate(runs):
        if (curve := run.curves.get(name)) is not None:
            lines += [("thin", place, run.name, curve)] if smooth else []
            lines.append(("line", place, run.name, curve.smoothed(window) if smooth else curve))
        if name == "loss" and (curve := run.curves.get("eval_loss")) is not None:
            lines.append(("dots", place, f"{run.name}, held out", curve))
    heights = np.concatenate([curve.finite for *_, curve in lines] or [[]])
    if not len(heights):
        return Chart(title, None)
    low, high = heights.min(), heights.max()
    log = bool(name in ("loss", "grad_norm") and low > 0 and high > 100 * low)
    (worth, suffix), (x_name, x_unit) = units.axis_unit(unit, high), _X[x]
    x_worth, x_suffix = units.axis_unit(x_unit, max(getattr(c, x)[-1] for *_, c in lines))
    traces, words = [], []
    for look, place, label, curve in sorted(lines, key=lambda line: line[0], reverse=True):
        thin, (colour, shape) = curve.thinned(points), mark(place)
        xs, ys, is_thin = getattr(thin, x) / x_worth, thin.value / worth, look == "thin"
        all_marked = look == "dots" or not np.isfinite(ys).all()  # Shows points between gaps.
        traces.append({
            "x": rounded(xs), "y": rounded(ys), "name": escape(label), "type": "scatter",
            "mode": "lines" if is_thin else "lines+markers", "opacity": 0.35 if is_thin else 1,
            "line": {"color": colour, "dash": "dash" if look == "dots" else "solid",
                     "width": 1 if is_thin else 1.7},
            "marker": {"symbol": shape, "maxdisplayed": 0 if all_marked else 6},
            "hoverinfo": "skip" if is_thin else "all",  # A template would show it all the same.
            "hovertemplate": "" if is_thin else f"%{{y:.4g}}{suffix}",
        })  # fmt: skip
        if not is_thin and len(ends := np.flatnonzero(np.isfinite(ys))):
            said = [f"{ys[k]:.4g}{suffix} at {x_name} {xs[k]:.5g}{x_suffix}" for k in ends[[0, -1]]]
            words.append(f"{label}: {', '.join(dict.fromkeys(said))}")
    x_axis = {"title": {"text": x_name, "standoff": 4}, "ticksuffix": x_suffix,
              "exponentformat": "SI", "hoverformat": ".4g" if x_unit else ",d"}  # fmt: skip
    y_axis = {"type": "log" if log else "linear", "ticksuffix": suffix,
              "exponentformat": "SI" if unit else "e",
              "rangemode": "normal" if name == "loss" else "tozero"}  # fmt: skip
    figure = _figure(traces, x_axis, y_axis, 250, hovermode="x unified")
    return Chart(title + " (logarithmic)" * log, figure, "; ".join(words))


def peak_charts(runs: list[RunRecord]) -> list[Chart]:
    """Draw the peak of each tier in use with a bar for each run."""
    charts, names = [], [escape(run.name) for run in runs]
    colours = [mark(place)[0] for place in range(len(runs))]
    y_axis = {"type": "category", "autorange": "reversed", "fixedrange": True}
    for tier, title in _TIERS.items():
        peaks = [(run.figures.get("peak_bytes") or {}).get(tier) or 0 for run in runs]
        worth, suffix = units.axis_unit("B", max(peaks))
        bars = {"type": "bar", "orientation": "h", "y": names, "marker": {"color": colours},
                "x": rounded(np.array(peaks) / worth), "text": [units.size(p) for p in peaks],
                "hoverinfo": "y+text"}  # fmt: skip
        figure = _figure([bars], {"ticksuffix": suffix}, y_axis, 70 + 28 * len(runs))
        said = [f"{run.name}: {units.size(p)}" for run, p in zip(runs, peaks, strict=True)]
        charts += [Chart(title, figure, "; ".join(said))] if any(peaks) else []
    return charts


def step_chart(run: RunRecord, step: StepTrace, long: float) -> Chart:
    """Draw one step with one row per lane; a range within another one is a thin bar below its name.

    Steps of several runs share a scale of `long` seconds.
    """
    bars: dict[str, list[tuple[str, Range]]] = {name: [] for name in _RANGES}
    for lane in step.lanes:
        for one in lane.ranges:
            key = next((name for name in (lane.name, one.name) if name in bars), "other")
            bars[key].append((escape(lane.name), one))
    traces = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": [lane for lane, _ in found],
            "base": rounded(np.array([1e3 * one.begin for _, one in found])),
            "x": rounded(np.array([1e3 * one.seconds for _, one in found])),
            "width": [0.35 if one.depth else 0.8 for _, one in found],
            "offset": [0.05 if one.depth else -0.4 for _, one in found],
            "text": ["" if one.depth else escape(one.name) for _, one in found],
            "hovertext": [_range_text(one) for _, one in found], "hoverinfo": "text",
            "textposition": "inside", "insidetextanchor": "start", "textangle": 0,
            "marker": {"color": _RANGES[name], "line": {"color": _RANGES[name], "width": 0.6}},
        }
        for name, found in bars.items() if found
    ]  # fmt: skip
    lanes = [escape(lane.name) for lane in step.lanes]
    y_axis = {"type": "category", "categoryorder": "array", "categoryarray": lanes,
              "range": [len(lanes) - 0.5, -0.5], "fixedrange": True}  # fmt: skip
    figure = _figure(
        traces, {"range": [0, 1e3 * long], "ticksuffix": " ms"}, y_axis, 110 + 32 * len(lanes),
        barmode="overlay", showlegend=True, uniformtext={"minsize": 10, "mode": "hide"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )  # fmt: skip
    title, steps = f"{run.name}: {step.name}, {units.seconds(step.seconds)}", run.figures["steps"]
    title += f" (the trace holds {step.steps} of {steps} steps)" * (step.steps < steps)
    busy = [f"{lane.name} {lane.busy_seconds / step.seconds:.1%}" for lane in step.lanes]
    return Chart(title, figure, f"busy: {', '.join(busy)}")


def fineness(runs: list[RunRecord]) -> tuple[int, int]:
    """Return the steps of a running mean (0 or 1: none) and the most points of a curve."""
    return max(run.figures["steps"] for run in runs) // 25, max(100, min(1000, 4000 // len(runs)))


def mark(place: int) -> tuple[str, str]:
    """Colour and shape of the run at a place."""
    return _COLOURS[place % len(_COLOURS)], [*SHAPES][place % len(SHAPES)]


def _figure(data: list[dict], x_axis: dict, y_axis: dict, height: int, **layout: Any) -> dict:
    clear, grid = "rgba(0,0,0,0)", "rgba(128,136,150,.28)"
    axis = {"gridcolor": grid, "zeroline": False, "automargin": True, "nticks": 6}
    common = {"height": height, "margin": {"l": 10, "r": 12, "t": 8, "b": 10}, "showlegend": False,
              "paper_bgcolor": clear, "plot_bgcolor": clear, "hoverlabel": {"namelength": -1},
              "xaxis": axis | x_axis, "yaxis": axis | y_axis}  # fmt: skip
    return {"data": data, "layout": common | layout}


def _range_text(one: Range) -> str:
    text = f"{one.name}: {units.seconds(one.seconds)} at {units.seconds(one.begin)}"
    return escape(text + (f", {units.size(one.bytes)}" if one.bytes else ""))
