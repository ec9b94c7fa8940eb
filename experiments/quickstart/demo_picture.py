"""Draw the demo's picture: loss curves above, one step's lanes below."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.quickstart.run_folder import RunFolder

STEP = re.compile(r"step( \d+)?")  # Ranges that hold a whole step; they only limit the search.
COLOURS = ("#4c566a", "#d08770", "#2e7d8c", "#8f6fa8")
STALLED = "#d8dee9"  # The device waits.
LANES = {"loop": "#4c566a", "device": "#2e7d8c", "d2h": "#d08770", "host": "#b48a00",
         "h2d": "#8f6fa8", "apply": "#5a8f3c"}  # fmt: skip
SMOOTHED = 12  # Steps in the running mean of the training loss.


def rows_of(events: list[dict]) -> dict[int, str]:
    """Map each lane's row number to its name."""
    return {
        e["tid"]: e["args"]["name"]
        for e in events
        if e.get("ph") == "M" and e.get("name") == "thread_name"
    }


def step_window(events: list[dict], seconds: float) -> tuple[float, float]:
    """Return begin and end, in microseconds, of the step whose length is nearest to `seconds`."""
    steps = [e for e in events if e.get("ph") == "X" and STEP.fullmatch(e["name"])]
    late = steps[len(steps) // 3 :]
    chosen = min(late, key=lambda e: abs(e["dur"] - 1e6 * seconds))
    return chosen["ts"], chosen["ts"] + chosen["dur"]


def clipped(event: dict, begin: float, end: float) -> tuple[float, float]:
    """Return start and length in ms of the part of a range inside the window."""
    first = max(event["ts"], begin)
    return (first - begin) / 1e3, (min(event["ts"] + event["dur"], end) - first) / 1e3


def label(axes, events: list[dict], begin: float, end: float, place: int) -> None:
    """Label the ranges that are wide enough for their names."""
    for event in events:
        first, length = clipped(event, begin, end)
        if length > 0.012 * len(event["name"]) * (end - begin) / 1e3:
            middle = first + length / 2
            axes.text(
                middle, place, event["name"], color="white", fontsize=7, ha="center", va="center"
            )


def draw_timeline(axes, run: RunFolder, title: str) -> float:
    """Draw the ranges of one step, one row a lane; return its length in ms."""
    events = run.trace_events
    names = rows_of(events)
    begin, end = step_window(events, run.step_seconds)
    ranges = [e for e in events if e.get("ph") == "X" and not STEP.fullmatch(e["name"])]
    inside = [e for e in ranges if e["ts"] + e["dur"] > begin and e["ts"] < end]
    order = list(LANES)
    rows = sorted(names, key=lambda tid: order.index(names[tid]) if names[tid] in order else 99)
    rows = [tid for tid in rows if names[tid] in order or any(e["tid"] == tid for e in inside)]
    for place, tid in enumerate(rows):
        mine = sorted((e for e in inside if e["tid"] == tid), key=lambda e: e["name"] == "stall")
        bars = [clipped(e, begin, end) for e in mine]
        colour = LANES.get(names[tid], COLOURS[0])
        colours = [STALLED if e["name"] == "stall" else colour for e in mine]
        axes.broken_barh(bars, (place - 0.4, 0.8), facecolors=colours, edgecolor=colours, lw=0.4)
        if names[tid] == "loop":
            label(axes, [e for e in inside if e["tid"] == tid], begin, end, place)
    axes.set_yticks(range(len(rows)), [names[tid] for tid in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("ms")
    axes.set_title(f"{title}; pale: the device waits", fontsize=10)
    return (end - begin) / 1e3


def running_mean(values: list[float]) -> list[float]:
    """Return the mean over the last SMOOTHED values, fewer at the start."""
    windows = (values[max(0, i + 1 - SMOOTHED) : i + 1] for i in range(len(values)))
    return [statistics.fmean(window) for window in windows]


def draw(runs: dict[str, RunFolder], path: Path) -> None:
    """Write the picture of all runs; runs without a link have no timeline."""
    linked = {name: run for name, run in runs.items() if run.bytes_per_step("d2h") > 0}
    figure, all_axes = plt.subplots(
        1 + len(linked),
        1,
        figsize=(9, 4 + 2.2 * len(linked)),
        height_ratios=[2] + [1] * len(linked),
        layout="constrained",
        squeeze=False,
    )
    loss_axes = all_axes[0, 0]
    for (name, run), colour in zip(runs.items(), COLOURS, strict=False):
        steps = [line["step"] for line in run.steps]
        losses = running_mean([line["loss"] for line in run.steps])
        loss_axes.plot(steps, losses, color=colour, lw=0.8, alpha=0.6)
        points = run.evals
        loss_axes.plot(*zip(*points, strict=True), "o--", color=colour, label=f"{name}, held out")
    loss_axes.set_xlabel("step")
    loss_axes.set_ylabel("nats per byte")
    loss_axes.set_title(
        f"loss; lines without dots: training, mean of {SMOOTHED} steps", fontsize=10
    )
    loss_axes.legend()
    below = all_axes[1:, 0]
    longest = 0.0
    for axes, (name, run) in zip(below, linked.items(), strict=True):
        title = f"{name}: one step (median {1e3 * run.step_seconds:.0f} ms)"
        longest = max(longest, draw_timeline(axes, run, title))
    for axes in below:
        axes.set_xlim(0, longest)
    figure.savefig(path, dpi=130)
    plt.close(figure)
