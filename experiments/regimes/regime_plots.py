"""Draws the differences of a question: a panel a setting, a line a way, the middle 95 %."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from questions import Question

if TYPE_CHECKING:
    from regime_tables import Line

LINEAR = 10  # Thousandths: farther out the scale is logarithmic, for those that are far behind.
COLOURS = ("#d55e00", "#0072b2", "#009e73")  # Of the references: told apart by eyes of every kind,
MARKERS = ("o", "s", "^")  # and by shape.


def draw(question: Question, lines: list[Line]) -> Figure:
    """Left of zero is better than the reference."""
    settings = list(dict.fromkeys(line.setting for line in lines))
    ways = [way for way in question.ways if any(line.way == way for line in lines)]
    size = (3.4 + 3.2 * len(settings), 1.4 + 0.34 * len(ways))
    figure, grid = plt.subplots(1, len(settings), squeeze=False, figsize=size,
                                sharex=True, sharey=True, layout="constrained")  # fmt: skip
    for axes, setting in zip(grid[0], settings, strict=True):
        _panel(axes, question, [line for line in lines if line.setting == setting], ways)
        axes.set_title(setting.name, fontsize=10)
    grid[0][0].set_yticks(range(len(ways)), [way.name for way in ways], fontsize=8)
    grid[0][0].set_ylim(len(ways) - 0.5, -0.5)
    figure.supxlabel("thousandths of a nat below or above the reference, and 95 % of Student's t",
                     fontsize=9)  # fmt: skip
    marks = [plt.Line2D([], [], color=colour, marker=marker, ls="none")
             for colour, marker in zip(COLOURS, MARKERS, strict=True)]  # fmt: skip
    names = [f"less {way.name}" for way in question.references]
    figure.legend(marks[: len(names)], names, frameon=False, loc="outside upper center",
                  ncols=2, fontsize=8)  # fmt: skip
    return figure


def _panel(axes: Axes, question: Question, lines: list[Line], ways: list) -> None:
    for number, reference in enumerate(question.references):
        for line in lines:
            one = line.differences.get(reference)
            if one is None or not math.isfinite(one.mean):
                continue
            place = ways.index(line.way) + (number - (len(question.references) - 1) / 2) * 0.24
            bar = 1000 * one.margin
            axes.errorbar(1000 * one.mean, place, xerr=bar, fmt=MARKERS[number], ms=4.5,
                          color=COLOURS[number], lw=1.2, capsize=2)  # fmt: skip
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(0, color="#888888", lw=0.8, zorder=0)
    axes.grid(axis="x", color="#e5e5e5", lw=0.6)
    axes.set_axisbelow(True)
