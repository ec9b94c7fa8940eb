"""Draws line charts as SVG text: axes, ticks, and the values of all runs at the pointer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from sluiceway.report.axis import Axis, make_axis

WIDTH, HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 34
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_STRIPES = 60  # Positions at which the pointer shows values.
_COLOURS = 7
# Circle, square, triangle, diamond, triangle on its tip: with 7 colours, 35 runs look different.
_SHAPES = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "M-2.9-2.9h5.8v5.8h-5.8z",
    "M0-4.2l4 7h-8z",
    "M0-4.4l4.4 4.4-4.4 4.4-4.4-4.4z",
    "M0 4.2l4-7h-8z",
)


@dataclass(frozen=True)
class Line:
    """One curve of a chart.

    Parameters
    ----------
    place : int
        Place of the run, which chooses colour and marker.
    name : str
        Name of the values at the pointer; "" leaves them out there.
    look : str
        "line", "thin" for values behind their mean, or "dots" for few values with markers.
    x, y : sequence
        Rising positions, and values; None is a gap.
    """

    place: int
    name: str
    look: str
    x: Sequence[float]
    y: Sequence[float | None]


def line_chart(
    title: str,
    lines: list[Line],
    x_name: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    *,
    from_zero: bool = False,
    may_be_log: bool = False,
) -> str:
    """Draw a figure with its caption.

    Parameters
    ----------
    x_text, y_text : callable
        Format a value with its unit.
    """
    heights = [v for line in lines for v in line.y if v is not None]
    if not heights:
        return _figure(title, '<p class="none">no finite value</p>')
    widths = [x for line in lines for x in line.x]
    x_axis = make_axis(widths, x_text, exact_end=True, most=4)
    y_axis = make_axis(heights, y_text, from_zero=from_zero, may_be_log=may_be_log)
    parts = [_grid(x_axis, y_axis), _text(WIDTH - _RIGHT, HEIGHT - 4, x_name, "end", "axis")]
    for look in ("thin", "line", "dots"):
        parts += [_curve(line, x_axis, y_axis) for line in lines if line.look == look]
    parts.append(_stripes(lines, x_name, x_axis, x_text, y_text))
    said = "; ".join(_ends(line, x_name, x_text, y_text) for line in lines if line.name)
    scale = " (logarithmic)" if y_axis.log else ""
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: '
        f'{escape(said)}">{"".join(parts)}</svg>'
    )
    return _figure(title + scale, svg)


def marker(place: int, x: float, y: float) -> str:
    """Draw a small shape that distinguishes runs without colour."""
    shape = _SHAPES[place % len(_SHAPES)]
    return f'<path class="m {colour(place)}" transform="translate({x:.1f} {y:.1f})" d="{shape}"/>'


def colour(place: int) -> str:
    """Name of the style class with a run's colour."""
    return f"c{place % _COLOURS}"


def _figure(title: str, body: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{body}</figure>"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def _x(axis: Axis, value: float) -> float:
    return _LEFT + _INNER_WIDTH * axis.share(value)


def _y(axis: Axis, value: float) -> float:
    return _TOP + _INNER_HEIGHT * (1 - axis.share(value))


def _grid(x_axis: Axis, y_axis: Axis) -> str:
    parts, bottom = [], HEIGHT - _BOTTOM
    for value, text in y_axis.ticks:
        y = _y(y_axis, value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}h{_INNER_WIDTH}"/>')
        parts.append(_text(_LEFT - 5, y + 3.5, text, "end"))
    for value, text in x_axis.ticks:
        x = _x(x_axis, value)
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v4"/>')
        parts.append(_text(x, bottom + 15, text, "middle" if x < WIDTH - 40 else "end"))
    parts.append(f'<path class="axis" d="M{_LEFT} {bottom}h{_INNER_WIDTH}"/>')
    return "".join(parts)


def _curve(line: Line, x_axis: Axis, y_axis: Axis) -> str:
    """Draw one path in relative tenths, which takes half the text of plain coordinates."""
    points = [
        None if value is None else (round(10 * _x(x_axis, x)), round(10 * _y(y_axis, value)))
        for x, value in zip(line.x, line.y, strict=True)
    ]
    words, at = [], None
    for point in points:
        if point is None:
            at = None
        elif at is None:
            words.append(f"M{point[0]} {point[1]}l0 0")  # Makes a lone point visible.
            at = point
        else:
            words.append(f"{point[0] - at[0]} {point[1] - at[1]}")
            at = point
    looks = f"{line.look} {colour(line.place)}"
    drawn = f'<path class="{looks}" transform="scale(.1)" d="{" ".join(words)}"/>'
    present = [p for p in points if p is not None]
    marked = present if line.look == "dots" and len(present) <= 60 else present[-1:]
    if line.look != "thin":
        drawn += "".join(marker(line.place, x / 10, y / 10) for x, y in marked)
    return drawn


def _stripes(
    lines: list[Line],
    x_name: str,
    axis: Axis,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> str:
    """Draw transparent stripes whose titles show the values at their position."""
    named = [line for line in lines if line.name and line.x]
    count = min(_STRIPES, len({x for line in named for x in line.x}))
    width, parts = _INNER_WIDTH / max(1, count), []
    for i in range(count):
        low, high = (axis.low + (axis.high - axis.low) * (i + j) / count for j in (0.0, 1.0))
        middle = (low + high) / 2
        said = []
        for line in named:
            place = _nearest(line.x, middle)
            if low - (high - low) <= line.x[place] <= high + (high - low):
                value = line.y[place]
                text = "not finite" if value is None else y_text(value)
                said.append(f"{line.name}: {text} at {x_text(line.x[place])}")
        if said:
            title = escape(f"{x_name}\n" + "\n".join(said))
            parts.append(
                f'<rect x="{_LEFT + i * width:.1f}" y="{_TOP}" width="{width:.1f}" '
                f'height="{_INNER_HEIGHT}"><title>{title}</title></rect>'
            )
    return f'<g class="stripes">{"".join(parts)}</g>'


def _nearest(x: Sequence[float], value: float) -> int:
    after = bisect_left(x, value)
    around = [j for j in (after - 1, after) if 0 <= j < len(x)]
    return min(around, key=lambda j: abs(x[j] - value))


def _ends(
    line: Line, x_name: str, x_text: Callable[[float], str], y_text: Callable[[float], str]
) -> str:
    finite = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if not finite:
        return f"{line.name}: no finite value"
    (x0, y0), (x1, y1) = finite[0], finite[-1]
    at = [f"{y_text(y)} at {x_name} {x_text(x)}" for x, y in ((x0, y0), (x1, y1))]
    return f"{line.name}: {at[0]}" + (f", {at[1]}" if x0 != x1 else "")
