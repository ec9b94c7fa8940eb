"""Tables of the page, with runs as columns side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from typing import Any

from sluiceway.config.file import flattened
from sluiceway.report import units
from sluiceway.report.records import LINKS, TIERS, RunRecord
from sluiceway.report.trace import StepTrace

Row = tuple[str, Callable[[RunRecord], Any]]


def summary(runs: list[RunRecord]) -> str:
    """Tabulate the key figures, which a reader looks for first."""
    return _side_by_side(runs, _SUMMARY, "Key figures of each run")


def origin(runs: list[RunRecord]) -> str:
    """Tabulate versions and machine, which a published number must name."""
    return _side_by_side(runs, _ORIGIN, "Where each run was made")


def config(runs: list[RunRecord]) -> str:
    """Tabulate the config keys that differ, with the whole config below."""
    flat = [flattened(run.config) for run in runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    differ = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
    rows = {key: [_plain(one.get(key)) for one in flat] for key in keys}
    parts = []
    if len(runs) > 1:
        different = {key: rows[key] for key in differ}
        parts.append(
            _table(runs, different, "Keys that differ between the runs")
            if differ
            else "<p>The runs have the same config.</p>"
        )
    whole = _table(runs, rows, "Every key")
    return f"{''.join(parts)}<details><summary>The whole config</summary>{whole}</details>"


def lane_figures(step: StepTrace) -> dict[str, Any]:
    """Name and seconds of a step, with busy seconds, ranges and bytes for each lane."""
    lanes = {
        lane.name: {
            "busy_seconds": lane.busy_seconds,
            "ranges": len(lane.ranges),
            "bytes": sum(r.bytes for r in lane.ranges),
        }
        for lane in step.lanes
    }
    return {"name": step.name, "seconds": step.seconds, "lanes": lanes}


def step_table(step: StepTrace, name: str) -> str:
    """Tabulate the numbers of the timeline."""
    rows = "".join(
        f'<tr><th scope="row">{escape(lane)}</th><td>{units.seconds(f["busy_seconds"])}</td>'
        f"<td>{units.share(f['busy_seconds'] / step.seconds)}</td><td>{f['ranges']}</td>"
        f"<td>{units.size(f['bytes']) if f['bytes'] else '-'}</td></tr>"
        for lane, f in lane_figures(step)["lanes"].items()
    )
    head = "".join(f'<th scope="col">{h}</th>' for h in ("lane", "busy", "of the step", "ranges",
                                                         "bytes"))  # fmt: skip
    title = f"{name}: {step.name} in numbers"
    table = f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>{rows}</table>"
    return f"<details><summary>{escape(title)}</summary>{_scroll(table, title)}</details>"


def _side_by_side(runs: list[RunRecord], rows: tuple[Row, ...], title: str) -> str:
    cells = {name: [value(run) for run in runs] for name, value in rows}
    present = {name: row for name, row in cells.items() if any(text is not None for text in row)}
    return _table(runs, present, title)


def _table(runs: list[RunRecord], rows: dict[str, list[Any]], title: str) -> str:
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape('-' if text is None else str(text))}</td>" for text in row)
        + "</tr>"
        for name, row in rows.items()
    )
    table = (
        f'<table><caption>{escape(title)}</caption><thead><tr><th scope="col">run</th>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table>"
    )
    return _scroll(table, title)


def _scroll(table: str, title: str) -> str:
    name = escape(title)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def _plain(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def _figure(key: str, text: Callable) -> Callable[[RunRecord], Any]:
    def cell(run: RunRecord) -> Any:
        value = run.figures.get(key)
        return None if value is None else text(value)

    return cell


def _steps(run: RunRecord) -> str:
    of = run.setting("train", "steps")
    return f"{run.figures['steps']}" + (f" of {of}" if of else "")


def _change(run: RunRecord) -> str | None:
    before, after = run.figures.get("first_eval_loss"), run.figures.get("final_eval_loss")
    return None if before is None or after is None else f"{after - before:+.4f}"


def _codecs(run: RunRecord) -> str | None:
    """Codecs that the engine chose, with their numbers of weights; None if it has no codecs."""
    weights: dict[str, int] = {}
    for group in run.summary.get("codecs") or ():
        weights[group["codec"]] = weights.get(group["codec"], 0) + group["weights"]
    return ", ".join(f"{codec} for {count} weights" for codec, count in weights.items()) or None


def _precision(run: RunRecord) -> str | None:
    what = run.summary.get("precision") or {}
    weights = what.get("weights") or run.setting("model", "dtype")
    if weights is None:
        return None
    autocast = what.get("autocast") if what else run.setting("model", "autocast")
    why = f" ({what['why']})" if what.get("why") else ""
    return f"weights {weights}, autocast {autocast or 'off'}{why}"


def _parameters(run: RunRecord) -> str | None:
    counts = run.summary.get("parameters") or {}
    if "trained" not in counts:
        return None
    frozen = counts.get("frozen")
    return f"{units.count(counts['trained'])}" + (
        f", {units.count(frozen)} frozen" if frozen else ""
    )


def _bytes_of(link: str) -> Callable[[RunRecord], Any]:
    def cell(run: RunRecord) -> str | None:
        count = (run.figures.get("bytes_per_step") or {}).get(link)
        # Most runs have no disk, and then the row is left out.
        shown = count or run.figures.get("disk") or not link.startswith("disk")
        return units.size(count) if shown and count is not None else None

    return cell


def _disk(key: str, text: Callable) -> Callable[[RunRecord], Any]:
    def cell(run: RunRecord) -> str | None:
        value = (run.figures.get("disk") or {}).get(key)
        return None if value is None else text(value)

    return cell


def _of_budget(tier: str) -> Callable[[RunRecord], Any]:
    def cell(run: RunRecord) -> str | None:
        peak, budget = (run.figures.get("peak_bytes") or {}).get(tier), run.setting("budget", tier)
        if peak is None:
            return None
        return units.size(peak) + (f" of {units.size(budget)}" if isinstance(budget, int) else "")

    return cell


def _inner(*keys: str) -> Callable[[RunRecord], Any]:
    def cell(run: RunRecord) -> Any:
        value: Any = run.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return cell


def _machine(run: RunRecord) -> str | None:
    machine = run.summary.get("machine") or {}
    said = [machine.get("processor"), machine.get("gpu")]
    if machine.get("cores"):
        said.append(f"{machine['cores']} cores")
    if machine.get("threads"):
        said.append(f"torch on {machine['threads']} threads")
    if machine.get("memory_bytes"):
        said.append(f"{units.size(machine['memory_bytes'])} memory")
    return ", ".join(part for part in said if part) or None


def _loss(value: float) -> str:
    return f"{value:.4f}"


_SUMMARY: tuple[Row, ...] = (
    ("status", lambda run: run.status),
    ("engine", lambda run: run.summary.get("engine") or run.setting("engine", "kind")),
    ("codecs", _codecs),
    ("steps", _steps),
    ("tokens", _figure("tokens", units.count)),
    ("time in steps", _figure("seconds", units.seconds)),
    ("held-out loss before", _figure("first_eval_loss", _loss)),
    ("held-out loss after", _figure("final_eval_loss", _loss)),
    ("change of held-out loss", _change),
    ("training loss, last step", _figure("final_loss", _loss)),
    ("time per step, median", _figure("median_step_seconds", units.seconds)),
    ("time relative to native AdamW", _figure("native_ratio", lambda ratio: f"{ratio:.3f} x")),
    ("tokens per second", _figure("tokens_per_second", units.rate)),
    ("stall share", _figure("stall_share", units.share)),
    ("waiting for data", _figure("data_share", units.share)),
    *((f"{link} per step, median", _bytes_of(link)) for link in LINKS),
    ("written to the disk, all steps", _disk("written_bytes", units.size)),
    ("written for new bases, all steps", _disk("consolidated_bytes", units.size)),
    ("written to the disk in a day", _disk("written_tb_per_day", lambda tb: f"{tb:.3g} TB")),
    *((f"{tier}, peak", _of_budget(tier)) for tier in TIERS),
    ("skipped steps", _figure("skipped_steps", units.count)),
    ("precision", _precision),
    ("parameters trained", _parameters),
)

_ORIGIN: tuple[Row, ...] = (
    ("folder", lambda run: str(run.folder)),
    *(
        (name, _inner("versions", name))
        for name in ("sluiceway", "torch", "transformers", "python")
    ),
    ("commit", lambda run: (run.summary.get("commit") or "")[:12] or None),
    ("config hash", _inner("config_hash")),
    ("machine", _machine),
)
