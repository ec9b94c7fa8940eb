"""Tables of the page, with runs as columns side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from sluiceway.config.file import flattened
from sluiceway.report import units
from sluiceway.run.run_record import LINKS, TIERS, RunRecord
from sluiceway.run.trace_step import StepTrace


class Table(NamedTuple):
    """Rows by name with a text for each column, None for a missing one; folded: behind a click."""

    title: str
    head: list[str]
    rows: dict[str, list[Any]]
    folded: bool = False


def side_by_side(
    runs: list[RunRecord], column: Callable[[RunRecord], dict[str, Any]], title: str
) -> Table:
    """Tabulate what `column` returns for each run, without rows in which no run has a text."""
    columns = [column(run) for run in runs]
    rows = {name: [texts[name] for texts in columns] for name in columns[0]}
    present = {name: row for name, row in rows.items() if any(text is not None for text in row)}
    return Table(title, ["run", *(run.name for run in runs)], present)


def config_tables(runs: list[RunRecord]) -> list[Table]:
    """Tabulate the config keys that differ, if any, and then the whole config."""
    flat = [flattened(run.config) for run in runs]
    rows = {key: [_plain(one.get(key)) for one in flat] for one in flat for key in one}
    differ = {key: row for key, row in rows.items() if len(set(row)) > 1}
    head = ["run", *(run.name for run in runs)]
    different = [Table("Keys that differ between the runs", head, differ)] if differ else []
    return [*different, Table("The whole config", head, rows, folded=True)]


def step_table(step: StepTrace, name: str) -> Table:
    """Tabulate the numbers of the timeline."""
    rows = {
        lane: [units.seconds(f["busy_seconds"]), f"{f['busy_seconds'] / step.seconds:.1%}",
               f["ranges"], units.size(f["bytes"] or None)]
        for lane, f in step.figures["lanes"].items()
    }  # fmt: skip
    title, head = f"{name}: {step.name} in numbers", ["lane", "busy", "share", "ranges", "bytes"]
    return Table(title, head, rows, folded=True)


def key_figures(run: RunRecord) -> dict[str, Any]:
    """Figures that a reader looks for first, as texts."""
    figures, summary, of = run.figures, run.summary, run.setting("train", "steps")
    disk, per_step, peaks = (figures.get(k) or {} for k in ("disk", "bytes_per_step", "peak_bytes"))
    precision, counts = (summary.get(key) or {} for key in ("precision", "parameters"))
    weights = precision.get("weights") or run.setting("model", "dtype")
    autocast = precision.get("autocast") if precision else run.setting("model", "autocast")
    why = f" ({precision['why']})" if precision.get("why") else ""
    frozen = f", {counts['frozen']:,} frozen" if counts.get("frozen") else ""
    codecs: dict[str, int] = {}
    for group in summary.get("codecs") or ():
        codecs[group["codec"]] = codecs.get(group["codec"], 0) + group["weights"]
    before, after = figures.get("first_eval_loss"), figures.get("final_eval_loss")
    if not disk:  # Nor rows for it.
        per_step = {link: n for link, n in per_step.items() if n or not link.startswith("disk")}
    return {
        "status": run.status,
        "engine": summary.get("engine") or run.setting("engine", "kind"),
        "codecs": ", ".join(f"{name} for {n} weights" for name, n in codecs.items()) or None,
        "steps": f"{figures['steps']}" + (f" of {of}" if of else ""),
        "tokens": _text(figures["tokens"], "{:,}".format),
        "time in steps": _text(figures["seconds"], units.seconds),
        "held-out loss before": _text(before, "{:.4f}".format),
        "held-out loss after": _text(after, "{:.4f}".format),
        "change of held-out loss": None if None in (before, after) else f"{after - before:+.4f}",
        "training loss, last step": _text(figures.get("final_loss"), "{:.4f}".format),
        "time per step, median": _text(figures.get("median_step_seconds"), units.seconds),
        "time relative to native AdamW": _text(figures.get("native_ratio"), "{:.3f} x".format),
        "tokens per second": _text(figures.get("tokens_per_second"), "{:,.1f}/s".format),
        "stall share": _text(figures.get("stall_share"), "{:.1%}".format),
        "waiting for data": _text(figures.get("data_share"), "{:.1%}".format),
        **{f"{link} per step, median": _text(per_step.get(link), units.size) for link in LINKS},
        "written to the disk, all steps": _text(disk.get("written_bytes"), units.size),
        "written for new bases, all steps": _text(disk.get("consolidated_bytes"), units.size),
        "written to the disk in a day": _text(disk.get("written_tb_per_day"), "{:.3g} TB".format),
        **{f"{tier}, peak": _text(peaks.get(tier), units.size, run.setting("budget", tier))
           for tier in TIERS},
        "skipped steps": _text(figures["skipped_steps"], "{:,}".format),
        "precision": f"weights {weights}, autocast {autocast or 'off'}{why}" if weights else None,
        "parameters trained": _text(counts.get("trained"), ("{:,}" + frozen).format),
    }  # fmt: skip


def origin(run: RunRecord) -> dict[str, Any]:
    """Versions and machine, which a published number must name."""
    versions, machine = (run.summary.get(key) or {} for key in ("versions", "machine"))
    return {
        "folder": str(run.folder),
        **{name: versions.get(name) for name in ("sluiceway", "torch", "transformers", "python")},
        "commit": (run.summary.get("commit") or "")[:12] or None,
        "config hash": run.summary.get("config_hash"),
        **{name: machine.get(name) for name in ("processor", "gpu", "cores", "threads")},
        "memory": _text(machine.get("memory_bytes"), units.size),
    }


def _text(value: Any, text: Callable[[Any], str], budget: Any = None) -> str | None:
    """Format a value that may be missing."""
    of = f" of {text(budget)}" if isinstance(budget, int) else ""
    return None if value is None else text(value) + of


def _plain(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)
