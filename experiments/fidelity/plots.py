"""Draw headline.png and curves.png from the finished fine-tunes.

python -m experiments.fidelity.plots
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.fidelity.stages import HEADLINE, MODELS, SHIFTS, Results
from experiments.fidelity.tables import DEFAULTS, REFERENCE, Row, Stage, looks, shares

FOLDER = Path(__file__).parent
# Okabe and Ito's colours, which colour-blind readers can tell apart; each has its own marker.
STYLES = (("#000000", "o"), ("#d55e00", "s"), ("#e69f00", "D"), ("#009e73", "^"),
          ("#0072b2", "v"), ("#cc79a7", "P"))  # fmt: skip
ALONE = next(method for method in HEADLINE if method.startswith("none+"))
MAIN = dict(zip((REFERENCE, *DEFAULTS[:2], ALONE, "galore", "lora32"), STYLES, strict=True))
LEAST = -0.25  # Lower shares become an arrow here: a diverged run has no place.


def panels(stage: Stage) -> list[tuple[str, str]]:
    """Models and texts that have a row for AdamW."""
    there = {(r.best.model, r.best.shift) for r in stage.rows if stage.native(r)}
    return [(m, s) for m in MODELS for s in SHIFTS if (m, s) in there]


def rows_of(stage: Stage, model: str, shift: str) -> dict[str, Row]:
    """Rows of a panel by method."""
    return {r.best.method: r for r in stage.rows
            if (r.best.model, r.best.shift) == (model, shift)}  # fmt: skip


def dots(axes: Axes, results: Results, stage: Stage, rows: dict[str, Row]) -> None:
    """Draw the shares of AdamW's gain: one line per method, one dot per seed."""
    for place, method in enumerate(HEADLINE):
        if method not in rows:
            continue
        row, native = rows[method], stage.native(rows[method])
        colour = "#d55e00" if method in DEFAULTS else "#0072b2"
        rates = ((row.best.lr, -0.14, colour), (native.best.lr, 0.14, "none"))
        for rate, aside, face in rates:
            jobs = row.jobs(rate)
            if not all(map(results.has, jobs)):
                continue
            for share in shares(results, jobs, native.jobs()):
                lost = not share >= LEAST
                axes.plot(LEAST if lost else share, place + aside, marker="<" if lost else "o",
                          ms=5.5, mec=colour, mfc=face, ls="none")  # fmt: skip
    axes.axvline(1, color="#888888", lw=0.8, zorder=0)
    axes.set_yticks(range(len(HEADLINE)), HEADLINE)
    axes.set_ylim(len(HEADLINE) - 0.5, -0.5)
    axes.grid(axis="x", color="#e5e5e5", lw=0.6)
    axes.set_axisbelow(True)


def draw_headline(results: Results, stage: Stage) -> Figure:
    """Draw one panel for each model and text."""
    shown = panels(stage)
    height = 0.32 * len(HEADLINE) * math.ceil(len(shown) / 2) + 1.2
    figure, grid = plt.subplots(math.ceil(len(shown) / 2), min(2, len(shown)), sharex=True,
                                sharey=True, squeeze=False, layout="constrained",
                                figsize=(10, height))  # fmt: skip
    for axes, (model, shift) in zip(grid.flat, shown, strict=False):
        dots(axes, results, stage, rows_of(stage, model, shift))
        axes.set_title(f"{model}, {shift}", fontsize=10)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    label = f"share of AdamW's gain, one dot a seed; an arrow is below {LEAST:g}"
    figure.supxlabel(label, fontsize=10)
    marks = [plt.Line2D([], [], marker="o", ls="none", color="#555555", mfc=face)
             for face in ("#555555", "none")]  # fmt: skip
    figure.legend(marks, ["method's best rate", "AdamW's rate"], loc="outside upper center",
                  ncols=2, frameon=False)  # fmt: skip
    return figure


def medians(results: Results, row: Row) -> Iterator[tuple[float, float, float]]:
    """Yield step, CPU seconds and loss of every evaluation, as medians over seeds."""
    for same_step in zip(*(looks(results, job) for job in row.jobs()), strict=True):
        yield (same_step[0].step, *(statistics.median(getattr(look, name) for look in same_step)
                                    for name in ("cpu_seconds", "loss")))  # fmt: skip


def draw_curves(results: Results, stage: Stage) -> Figure:
    """Draw loss over steps above and over CPU seconds below; one column for each model and text."""
    shown = panels(stage)
    figure, grid = plt.subplots(2, len(shown), squeeze=False, sharey="col", layout="constrained",
                                figsize=(max(6, 3.2 * len(shown)), 6))  # fmt: skip
    for column, (model, shift) in zip(grid.T, shown, strict=True):
        rows = rows_of(stage, model, shift)
        for method, (colour, marker) in MAIN.items():
            if method not in rows:
                continue
            steps, seconds, losses = zip(*medians(results, rows[method]), strict=True)
            for axes, over in zip(column, (steps, seconds), strict=True):
                axes.plot(over, losses, color=colour, marker=marker, ms=4, lw=1.3, label=method)
        column[0].set_title(f"{model}, {shift}", fontsize=10)
        column[0].set_xlabel("steps")
        column[1].set_xlabel("CPU seconds")
        for axes in column:
            axes.grid(color="#e5e5e5", lw=0.6)
    for axes in grid[:, 0]:
        axes.set_ylabel("nats a byte")
    lines = {line.get_label(): line for axes in grid[0] for line in axes.get_lines()}
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=6,
                  frameon=False)  # fmt: skip
    return figure


def main() -> None:
    """Draw both figures from the results that exist."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    results = Results(args.results)
    stage = Stage(results, "headline")
    if not panels(stage):
        raise SystemExit("plots: AdamW has no finished row yet; see run.py --count")
    for name, draw in (("headline", draw_headline), ("curves", draw_curves)):
        draw(results, stage).savefig(args.out / f"{name}.png", dpi=130)
        print(args.out / f"{name}.png")


if __name__ == "__main__":
    main()
