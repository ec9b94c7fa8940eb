"""Write RESULTS.md from the existing rows."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from experiments.fidelity.stages import HIGHEST, LOWEST, Found
from experiments.fidelity.tables import kib, number, table
from experiments.harness import commits
from experiments.regimes.differences import Difference, paired, share, worth_in_steps
from experiments.regimes.fine_tunes import Run, Setting, Way
from experiments.regimes.questions import (
    ADAMW,
    HALF_SVD,
    QUESTIONS,
    RATED,
    WORTHS,
    Question,
    added,
    cells,
    chosen_rate,
    final_runs,
)


@dataclass(frozen=True)
class Line:
    """A row of a table: one way in one setting, at its chosen rate."""

    setting: Setting
    way: Way
    lr: float
    runs: tuple[Run, ...]
    differences: dict[Way, Difference]  # Differences to the references other than itself.


def lines_of(question: Question, found: Found) -> list[Line]:
    """Return the rows whose runs have all finished, in the order of the question."""
    lines = []
    for setting, way in cells(question):
        mine, lr = final_runs(found, question, setting, way), chosen_rate(found, setting, way)
        if lr is None or not all(map(found.has, mine)):
            continue
        differences = {}
        for other in question.references:
            found_one = paired(found, mine, final_runs(found, question, setting, other))
            if other != way and found_one is not None:
                differences[other] = found_one
        lines.append(Line(setting, way, lr, tuple(mine), differences))
    return lines


def shown(one: Difference | None) -> str:
    """Format a difference in thousandths of a nat; bold means that noise is rarely as large."""
    if one is None:
        return "-"
    if one.mean == -math.inf:
        return "reference diverged"
    if one.error is None:
        return number(1000 * one.mean, "+.1f")
    text = f"{1000 * one.mean:+.1f} ± {1000 * one.error:.1f}"
    return f"**{text}**" if one.sure else text


def rate_text(lr: float) -> str:
    """Format a rate, marked if no further rate is tried."""
    return f"{lr:g}" if LOWEST < lr < HIGHEST else f"{lr:g} (edge)"


def question_table(question: Question, found: Found) -> str:
    """Format loss, differences to the references, and the cost of each way as Markdown."""
    others = (f"less `{way.name}`" for way in question.references)
    columns = ("setting", "method", "lr", "loss", *others, "share", "seeds", "device state, KiB",
               "link, KiB a step", "CPU s")  # fmt: skip
    rows = []
    for line in lines_of(question, found):
        runs = [found.of(run) for run in line.runs]
        native = final_runs(found, question, line.setting, ADAMW)
        cpu = statistics.median(run["cpu_seconds"] for run in runs)
        rows.append((line.setting.name, f"`{line.way.name}`", rate_text(line.lr),
                     number(statistics.fmean(found.loss(run) for run in line.runs)),
                     *(shown(line.differences.get(other)) for other in question.references),
                     number(share(found, list(line.runs), native), ".3f"), str(len(runs)),
                     kib(runs[0]["device_state_bytes"]), kib(runs[0]["link_bytes"]),
                     number(cpu, ".0f")))  # fmt: skip
    return table(columns, rows)


def worth_table(found: Found) -> str:
    """Format as Markdown how many steps of the residual alone match cores of half of each side."""
    rows = []
    for question in QUESTIONS:
        if question.name not in WORTHS:
            continue
        short, longer = question.settings[:2]
        asked = ((short, added(HALF_SVD, "kw")), (short, RATED), (longer, RATED))
        worth = worth_in_steps(found, *(final_runs(found, question, *one) for one in asked))
        if worth is not None and worth.error is not None:
            low = (worth.mean - 2 * worth.error) / short.steps
            rows.append((f"{short.tokens:,}", str(short.steps), str(longer.steps),
                         f"{worth.mean:.1f} ± {worth.error:.1f}",
                         f"{100 * worth.mean / short.steps:.1f} %", f"{100 * low:.1f} %",
                         str(worth.pairs)))  # fmt: skip
    return table(("tokens a step", "steps", "slope to", "worth in steps", "of the run",
                  "less two standard errors", "seeds"), rows)  # fmt: skip


HEAD = """# What a core is worth: results

Written by `python -m experiments.regimes.run --table` from `results.jsonl`; code of {commits}.

Where nothing else is said: small model, Perl, 256 tokens a step, 200 steps, f = 1/4. Every way has
the rate that was best for it on `pick`, with one seed; all that is shown is of `final`, with other
seeds. `loss` is the mean, in nats a byte. A difference is a mean over seeds that share start and
order of the text, with its standard error, in thousandths of a nat; negative is better than the
reference, bold is beyond 95 % of Student's t for its seeds, which one in twenty of pure noise is. A
rate with `(edge)` is the last that is tried. `share` is of AdamW's gain, at its own best rate.
"""


def document(found: Found) -> str:
    """Write RESULTS.md as one string."""
    parts = [HEAD.format(commits=commits(found.rows()))]
    for question in QUESTIONS:
        lines, asked = lines_of(question, found), len(list(cells(question)))
        parts.append(f"## {question.asks}\n")
        if not lines:
            parts.append(f"`{question.name}`: nothing yet.\n")
            continue
        parts.append(f"{question_table(question, found)}\n")
        if len(lines) < asked:
            parts.append(f"Rows not complete: {asked - len(lines)}.\n")
    parts.append("## What `svd` at f = 1/2 is worth in steps of the residual alone\n")
    parts.append(f"{worth_table(found)}\n")
    return "\n".join(parts)
