"""Turn the finished fine-tunes into RESULTS.md.

Learning rates are chosen on `pick`; the tables show losses on `final`. A row is shown once every
fine-tune that its stage plans has finished; the tables count the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from experiments.fidelity.stages import HEADLINE, PLAIN, STAGES, Results, median_and_range
from experiments.fidelity.train_one import Job
from experiments.harness import commits

REFERENCE = "adamw"
# The method that codec="auto" stands for, and its rivals.
DEFAULTS = [m for m in reversed(HEADLINE) if m.startswith(("svd+res", "block_random+res"))]
RIVALS = [m for m in HEADLINE if m.startswith(("lora", "galore", "adafactor", "none+"))]


@dataclass(frozen=True)
class Row:
    """One method in one setting, at its best rate."""

    best: Job  # Result of the first seed.
    seeds: tuple[int, ...]

    def jobs(self, rate: float | None = None) -> list[Job]:
        """Return one job for each seed, at the best rate or another one."""
        return [replace(self.best, lr=rate or self.best.lr, seed=seed) for seed in self.seeds]


class Look(NamedTuple):
    """Evaluation during a fine-tune."""

    step: int
    seconds: float
    cpu_seconds: float | None
    loss: float


class Stage:
    """Results of one stage."""

    def __init__(self, results: Results, name: str) -> None:
        planned: dict[Job, list[Job]] = {}
        for job in dict.fromkeys(STAGES[name](results)):
            planned.setdefault(replace(job, lr=0.0, seed=0), []).append(job)
        self.rows = [
            _row(results, setting, jobs)
            for setting, jobs in planned.items()
            if all(map(results.has, jobs))
        ]
        self.missing = len(planned) - len(self.rows)
        self._native = {_text_and_steps(r.best): r for r in self.rows if r.best.method == REFERENCE}

    def native(self, row: Row) -> Row | None:
        """AdamW's row for the same model, text and steps."""
        return self._native.get(_text_and_steps(row.best))


def _row(results: Results, setting: Job, jobs: list[Job]) -> Row:
    seeds = {job.lr: tuple(sorted(j.seed for j in jobs if j.lr == job.lr)) for job in jobs}
    most = max(seeds.values(), key=len)  # Only the first seed ran with rates that were not chosen.
    best = results.best_rate(setting, [rate for rate, mine in seeds.items() if mine == most])
    return Row(replace(setting, lr=best), most)


def _text_and_steps(job: Job) -> tuple[str, str, int]:
    return job.model, job.shift, job.steps


Native = Callable[[Row], Row | None]


def shares(results: Results, jobs: list[Job], native: list[Job]) -> list[float]:
    """Gain divided by AdamW's gain, seed by seed; equal seeds have equal batches."""

    def gain(job: Job) -> float:
        return results.of(job)["before"]["final"] - results.loss(job)

    return [gain(job) / gain(other) for job, other in zip(jobs, native, strict=True)]


def looks(results: Results, job: Job) -> list[Look]:
    """Evaluations during a fine-tune; losses that are not finite become infinite.

    Older files lack the CPU seconds.
    """
    found = []
    for step, seconds, *cpu, loss in results.of(job)["curve"]:
        found.append(Look(step, seconds, *(cpu or [None]), loss if loss == loss else math.inf))
    return found


def loss_at(curve: Sequence[tuple[float | None, float]], time: float | None) -> float | None:
    """Loss at `time`, interpolated between two evaluations; after the end, the last loss."""
    if time is None or any(at is None for at, _ in curve) or time < curve[0][0]:
        return None
    for (begin, high), (end, low) in pairwise(curve):
        if time <= end:
            lost = math.isinf(high + low)
            return math.inf if lost else high + (low - high) * (time - begin) / (end - begin)
    return curve[-1][1]


# ---- Text ----------------------------------------------------------------------------------------


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def number(value: float | None, form: str = ".4f") -> str:
    """Format a number; "-" stands for None."""
    if value is None:
        return "-"
    return format(value, form) if math.isfinite(value) else "diverged"


def spread(values: list[float], form: str = ".4f") -> str:
    """Format the median, and the range if there are several values."""
    median, low, high = median_and_range(values)
    if len(values) == 1:
        return number(median, form)
    return f"{number(median, form)} ({number(low, form)} to {number(high, form)})"


def kib(count: int | None) -> str:
    """Format bytes in KiB."""
    return "-" if count is None else f"{count / 1024:,.0f}"


def at_rate(results: Results, row: Row, native: Row | None, rate: float) -> tuple[str, str]:
    """Format loss and share of AdamW's gain at a rate; AdamW is at its own best rate."""
    jobs = row.jobs(rate)
    if not all(map(results.has, jobs)):
        return "-", "-"
    loss = spread([results.loss(job) for job in jobs])
    if native is None:
        return loss, "-"
    return loss, spread(shares(results, jobs, native.jobs()), ".3f")


def compared(results: Results, rows: Iterable[Row], native_of: Native) -> str:
    """Tabulate rows by their loss at the best rate and at AdamW's rate, with the cost of each."""
    columns = ("method", "f", "best lr", "loss", "share", "loss at AdamW's lr", "share",
               "device state, KiB", "link, KiB a step", "CPU s")  # fmt: skip
    lines = []
    for row in sorted(rows, key=lambda r: _median_loss(results, r.jobs())):
        native = native_of(row)
        mine = [results.of(job) for job in row.jobs()]
        cpu = [run["cpu_seconds"] for run in mine if "cpu_seconds" in run]
        at_native = at_rate(results, row, native, native.best.lr) if native else ("-", "-")
        has_core = row.best.method not in PLAIN and not row.best.method.startswith("none")
        lines.append((row.best.method, f"{row.best.ratio:g}" if has_core else "-",
                      f"{row.best.lr:g}",
                      *at_rate(results, row, native, row.best.lr), *at_native,
                      kib(mine[0]["device_state_bytes"]), kib(mine[0]["link_bytes"]),
                      number(statistics.median(cpu), ".0f") if cpu else "-"))  # fmt: skip
    return table(columns, lines)


def _median_loss(results: Results, jobs: list[Job]) -> float:
    return statistics.median(results.loss(job) for job in jobs)


def contests(results: Results, stage: Stage, mine: str, same_rate: bool) -> str:
    """Say in one sentence in which settings the median loss of `mine` is below each rival's."""
    of = {(r.best.method, *_text_and_steps(r.best)): r for r in stage.rows}
    texts = []
    for rival in RIVALS:
        won, lost, clear = 0, [], 0
        for (method, *setting), row in of.items():
            other, native = of.get((rival, *setting)), stage.native(row)
            if method != mine or other is None or native is None:
                continue
            jobs = row.jobs(native.best.lr if same_rate else None)
            ours, theirs = ([results.loss(j) for j in js] for js in (jobs, other.jobs()))
            behind = statistics.median(ours) - statistics.median(theirs)
            won += behind < 0
            clear += max(ours) < min(theirs)
            if behind >= 0:
                lost.append(f"{setting[0]} {setting[1]} by {number(behind)}")
        if won or lost:
            wins = f"{rival} in {won} of {won + len(lost)} ({clear} with every seed)"
            texts.append(wins + (f", behind in {' and '.join(lost)}" if lost else ""))
    where = "at AdamW's rate" if same_rate else "at its best rate"
    return f"- `{mine}` {where} is ahead of {'; '.join(texts)}." if texts else ""


def headline(results: Results, stage: Stage) -> str:
    """Tabulate every model and text, then list which method is ahead of which."""
    parts = []
    for model, shift in dict.fromkeys((r.best.model, r.best.shift) for r in stage.rows):
        rows = [r for r in stage.rows if (r.best.model, r.best.shift) == (model, shift)]
        parts.append(f"### {model}, {shift}\n\n{compared(results, rows, stage.native)}")
    sentences = [contests(results, stage, m, same) for m in DEFAULTS for same in (False, True)]
    ahead = "\n".join(filter(None, sentences))
    if ahead:
        parts.append("### Who is ahead\n\nBy median loss; every rival at its own best rate. "
                     f"Settings are models and texts.\n\n{ahead}")  # fmt: skip
    return "\n\n".join(parts)


def equal_time(results: Results, stage: Stage) -> str:
    """Tabulate losses at the time when tuned AdamW ended, by the clock and by CPU seconds."""
    columns = ("model", "text", "method", "seconds a run", "loss at AdamW's end", "CPU s a run",
               "loss at AdamW's CPU end")  # fmt: skip
    lines = []
    for row in stage.rows:
        native = stage.native(row)
        if native is None:
            continue
        cells = []
        curves = [looks(results, job) for job in row.jobs()]
        ends = [looks(results, job)[-1] for job in native.jobs()]
        for clock in ("seconds", "cpu_seconds"):
            mine = [[(getattr(look, clock), look.loss) for look in curve] for curve in curves]
            lengths = [curve[-1][0] for curve in mine]
            losses = [loss_at(c, getattr(e, clock)) for c, e in zip(mine, ends, strict=True)]
            cells += ["-" if None in lengths else number(statistics.median(lengths), ".0f"),
                      "-" if None in losses else spread(losses)]  # fmt: skip
        lines.append((row.best.model, row.best.shift, row.best.method, *cells))
    return table(columns, lines)


def refreshed(results: Results, stage: Stage) -> str:
    """Tabulate losses by refresh interval."""
    lines = [
        (r.best.method, r.best.refresh, f"{r.best.lr:g}", number(results.loss(r.best)),
         number(results.of(r.best).get("cpu_seconds"), ".0f"))
        for r in stage.rows
    ]  # fmt: skip
    return table(("method", "refresh", "lr", "loss", "CPU s"), lines)


SHARE = ("`loss` is nats a byte on `final`; `share` is (before - after) / (before - after of AdamW "
         "at its best rate)")  # fmt: skip
PAIRED = f"{SHARE}, taken seed by seed and then the median, range in brackets. Three seeds."


def document(results: Results) -> str:
    """Return the text of RESULTS.md."""
    stages = {name: Stage(results, name) for name in STAGES}
    screen = stages["screen"]

    def plainly(results: Results, stage: Stage) -> str:
        return compared(results, stage.rows, stage.native)

    def section(title: str, name: str, text: str, body: Callable[[Results, Stage], str]) -> str:
        stage = stages[name]
        content = body(results, stage) if stage.rows else "Nothing yet."
        missing = f"\n\nRows not complete: {stage.missing}." if stage.missing else ""
        return f"## {title}\n\n{text}\n\n{content}{missing}"

    parts = [
        "# Fidelity: results\n\nWritten by `python -m experiments.fidelity.run --table` from "
        f"`results.jsonl`; code of {commits(_shown(results, stages.values()))}.",
        section("Screen", "screen", f"Small model, prose, one seed. {SHARE}.", plainly),
        section("Core sizes", "ratios", f"Small model, prose, one seed. {SHARE}.",
                lambda r, s: compared(r, s.rows, screen.native)),
        section("Headline", "headline", PAIRED, headline),
        section("Equal time", "headline",
                "Each method at its best rate, loss on the glance set. Its schedule is that of "
                "all steps, and may not be over when AdamW has ended; a run that ended earlier "
                "counts with its last loss. `-`: not there, or AdamW ended before the first look.",
                equal_time),
        section("Residuals in turns", "rolling",
                f"Prose; `everyK`: a weight has its residual every K-th step, and no gradient in "
                f"the others (`../fused/README.md`). {PAIRED}", headline),
        section("Refresh", "refresh", "Small model, prose, 400 steps, one seed.", refreshed),
        section("1,000 steps", "long", f"Small model, prose. {PAIRED}", plainly),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _shown(results: Results, stages: Iterable[Stage]) -> Iterable[dict]:
    """Rows that a table shows."""
    return (results.of(job) for stage in stages for row in stage.rows for job in row.jobs())
