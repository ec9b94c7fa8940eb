"""Draws bars as SVG text: the lanes of one step, and peak bytes by tier."""

from __future__ import annotations

from html import escape

from sluiceway.report import units
from sluiceway.report.axis import make_axis
from sluiceway.report.chart import colour
from sluiceway.report.trace import Lane, Range, StepTrace

_WIDTH, _LEFT, _RIGHT = 1000, 62, 14
_ROW, _BAR = 30, 22
_LEAST = 1.5  # Narrower ranges close together become one bar.
_NESTED = 9  # Height of a range within another one.
_LETTER = 6.6  # Approximate width.
# Looks of ranges on the loop and the device; ranges on other lanes have the lane's look.
_KINDS = {
    "forward": "k0",
    "backward": "k1",
    "compress": "k2",
    "residual": "k6",
    "calibrate": "k4",
    "stall": "k5",
    "optimizer step": "k3",
}
_LANES = {"d2h": "k6", "host": "k7", "h2d": "k8", "apply": "k9"}


def timeline(step: StepTrace, title: str, long: float) -> str:
    """Draw one step with one row per lane.

    Parameters
    ----------
    long : float
        Seconds that the whole width stands for: steps of several runs share a scale.
    """
    height = _ROW * len(step.lanes) + 26
    axis = make_axis([0.0, 1e3 * long], units.number, exact_end=True, most=8)
    inner, bottom, parts = _WIDTH - _LEFT - _RIGHT, height - 24, []
    for value, text in axis.ticks:
        x = _LEFT + inner * axis.share(value)
        parts.append(f'<path class="grid" d="M{x:.1f} 0v{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 9}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{_WIDTH - 2}" y="{height - 9}" text-anchor="end">ms</text>')
    for row, lane in enumerate(step.lanes):
        y = _ROW * row + (_ROW - _BAR) / 2
        middle = y + _BAR / 2 + 4
        parts.append(f'<path class="grid" d="M0 {_ROW * (row + 1)}h{_WIDTH}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{middle}" text-anchor="end">{lane.name}</text>')
        parts += [_bar(lane, group, y, inner / long) for group in _groups(lane, inner / long)]
    said = ", ".join(f"{lane.name} {_busy(lane, step)}" for lane in step.lanes)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Busy: '
        f'{escape(said)}">{"".join(parts)}</svg></div></figure>'
    )


def kinds_legend(steps: list[StepTrace]) -> str:
    """Draw a legend of the colours of loop and device that occur in the steps."""
    names = {r.name for step in steps for lane in step.lanes for r in lane.ranges}
    items = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><rect class="{kind}" width="26" '
        f'height="10"/></svg>{name}</li>'
        for name, kind in _KINDS.items()
        if name in names
    )
    return f'<ul class="legend" aria-label="Colours">{items}</ul>'


def _busy(lane: Lane, step: StepTrace) -> str:
    return units.share(lane.busy_seconds / step.seconds)


def _groups(lane: Lane, per_second: float) -> list[list[Range]]:
    """Group ranges into bars: ranges of one depth that are too narrow and close to tell apart."""
    groups: list[list[Range]] = []
    open_groups: dict[int, list[Range]] = {}
    for one in lane.ranges:
        group = open_groups.get(one.depth)
        if group is not None and one.seconds * per_second < _LEAST:
            first, last = group[0], group[-1]
            gap = one.begin - last.begin - last.seconds
            if first.seconds * per_second < _LEAST and gap * per_second < _LEAST / 2:
                group.append(one)
                continue
        open_groups[one.depth] = [one]
        groups.append(open_groups[one.depth])
    return groups


def _bar(lane: Lane, group: list[Range], y: float, per_second: float) -> str:
    first, last = group[0], group[-1]
    x = _LEFT + first.begin * per_second
    width = max(0.6, (last.begin + last.seconds - first.begin) * per_second)
    inset = 0 if first.depth == 0 else _BAR - _NESTED
    kind = _LANES.get(lane.name) or _KINDS.get(first.name, "k10")
    title = escape(_title(group))
    bar = (
        f'<rect class="{kind}" x="{x:.1f}" y="{y + inset:g}" width="{width:.1f}" '
        f'height="{_BAR - inset}"><title>{title}</title></rect>'
    )
    if len(group) == 1 and first.depth == 0 and width > _LETTER * len(first.name) + 6:
        room = _BAR - _NESTED if any(one.depth for one in lane.ranges) else _BAR
        at = f'x="{x + 4:.1f}" y="{y + room / 2 + 4:g}"'
        bar += f'<text class="in" {at}>{escape(first.name)}</text>'
    return bar


def _title(group: list[Range]) -> str:
    first, last = group[0], group[-1]
    total = sum(one.seconds for one in group)
    name = first.name if len(group) == 1 else f"{len(group)} ranges, {first.name} to {last.name}"
    count = sum(one.bytes for one in group)
    crossed = f", {units.size(count)}" if count else ""
    return f"{name}: {units.seconds(total)} at {units.seconds(first.begin)}{crossed}"


def memory_bars(title: str, peaks: list[tuple[int, str, int]], most: int) -> str:
    """Draw the peak of one tier with one bar per run.

    Parameters
    ----------
    peaks : list of (int, str, int)
        Place of the run, its name, and its bytes.
    most : int
        Bytes that the whole width stands for.
    """
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{units.size(peak)}</td>'
        f'<td class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{colour(place)}" width="{100 * peak / max(1, most):.2f}" height="10"/>'
        f"</svg></td></tr>"
        for place, name, peak in peaks
    )
    return f"<figure><table class=bars><caption>{escape(title)}</caption>{rows}</table></figure>"
