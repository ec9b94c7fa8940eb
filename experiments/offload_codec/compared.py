"""Turn the finished fine-tunes into RESULTS.md.

Learning rates are chosen on `pick`, and the tables show losses on `final`, as in
experiments/fidelity.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from experiments.fidelity.stages import Results
from experiments.fidelity.tables import number, shares, table
from experiments.fidelity.train_one import Job
from experiments.harness import commits
from experiments.offload_codec import codec_bytes
from experiments.offload_codec.rows import (
    BASELINES,
    CODECS,
    LONG,
    RATIOS,
    REDRAWS,
    SCREENED,
    Setting,
    best_job,
    called,
    long,
)
from experiments.offload_codec.winners import headline, paired


def screened(results: Results, setting: Setting) -> str:
    """Tabulate every finished row by its loss, with one seed."""
    native = best_job(results, setting, BASELINES[0])
    rows = [*BASELINES, *((c, f, r) for c in CODECS for f in RATIOS for r in REDRAWS)]
    best = {row: job for row in rows if (job := best_job(results, setting, row)) is not None}
    lines = []
    for row, job in sorted(best.items(), key=lambda item: results.loss(item[1])):
        run = results.of(job)
        plain = replace(job, lr=native.lr) if native else None
        bias = "-" if row in BASELINES else number(run["relative_bias"], ".2f")
        codec = "-" if row in BASELINES else number(run["codec_seconds"], ".0f")
        lines.append([*called(row), f"{job.lr:g}", number(results.loss(job)),
                      first_share(results, job, native), first_share(results, plain, native), bias,
                      codec])  # fmt: skip
    columns = ("codec", "f", "redraw", "best lr", "loss", "share", "share at AdamW's lr", "bias",
               "codec, CPU s")  # fmt: skip
    return table(columns, lines) + f"\n\nRows not complete: {len(rows) - len(best)}."


def first_share(results: Results, job: Job | None, native: Job | None) -> str:
    """Share of AdamW's gain for one seed."""
    if job is None or native is None or not (results.has(job) and results.has(native)):
        return "-"
    return number(shares(results, [job], [native])[0], ".3f")


def redraw_differences(results: Results) -> str:
    """Tabulate the share of each redraw less that of fixed projectors, with all else equal."""
    lines = []
    for codec in CODECS:
        for redraw in REDRAWS[1:]:
            found = []
            for setting in SCREENED:
                native = best_job(results, setting, BASELINES[0])
                for ratio in RATIOS:
                    pair = [best_job(results, setting, (codec, ratio, r))
                            for r in (redraw, "never")]  # fmt: skip
                    if native is not None and None not in pair:
                        new, old = shares(results, pair, [native, native])
                        found.append(new - old)
            if found:
                lines.append([codec, f"every {redraw}", number(statistics.mean(found), "+.3f"),
                              ", ".join(number(d, "+.3f") for d in found)])  # fmt: skip
    return table(("codec", "redraw", "mean", "each pair"), lines)


def lasting(results: Results) -> str:
    """Tabulate the long runs, with one seed."""
    lines = []
    native = best_job(results, SCREENED[0], BASELINES[0])
    for job in long(results):
        if results.has(job):
            whole = replace(native, steps=job.steps)
            row = (job.method, job.ratio, job.refresh)
            lines.append([*called(row), f"{job.lr:g}", number(results.loss(job)),
                          first_share(results, job, whole)])  # fmt: skip
    return table(("codec", "f", "redraw", "lr", "loss", "share"), lines)


def document(results: Results) -> str:
    """Return the text of RESULTS.md."""
    rows = [("identity", 1.0), *((c, f) for c in CODECS for f in RATIOS)]
    bytes_table = table(codec_bytes.COLUMNS, [codec_bytes.cells(*row) for row in rows])
    parts = [
        "# A codec for the disk engine: results\n\nWritten by "
        "`python -m experiments.offload_codec.run --table` from `results.jsonl`; "
        f"code of {commits(results.rows())}.",
        "## Bytes for a parameter and step, by formula\n\nf32 states, 16-bit weights that stay on "
        f"the device. `P and Q` (host memory, and down the link at a redraw) and `host flop` are "
        f"those of a {codec_bytes.SIDE} x {codec_bytes.SIDE} weight.\n\n{bytes_table}",
    ]
    for setting in SCREENED:
        parts.append(f"## Screen: {setting[0]} model, {setting[1]}, one seed\n\n"
                     f"`share` is of AdamW's gain at its best rate, `bias` |G^ - G| / |G|.\n\n"
                     f"{screened(results, setting)}")  # fmt: skip
    parts.append("## What redrawing brings\n\nShare of AdamW's gain less that of the same codec "
                 "with fixed projectors, each at its best rate; pairs are small prose and small "
                 f"C++ at f = 1/4 and 1/2.\n\n{redraw_differences(results)}")  # fmt: skip
    parts.append("## Four settings, three seeds\n\nMedian share of AdamW's gain and its range, "
                 "each at its best rate; `fidelity` rows are the subspace engine's, of "
                 f"`experiments/fidelity`.\n\n{headline(results)}\n\nPaired differences of the "
                 "share, mean over settings and seeds and its standard error (pairs).\n\n"
                 f"{paired(results)}")  # fmt: skip
    parts.append(f"## {LONG:,} steps\n\nSmall model, prose, one seed, at the best rate of 200."
                 f"\n\n{lasting(results)}")  # fmt: skip
    return "\n\n".join(parts) + "\n"
