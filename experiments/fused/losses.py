"""Write LOSSES.md: loss against time for residuals in turns.

    python -m experiments.fidelity.run --stages rolling     # the losses
    python -m experiments.step.step ... --out BLOCK_FILE    # the seconds; README.md has the command
    python -m experiments.fused.losses

The losses are those of small models. The seconds are those of a block as large as a user's, since a
small model's step does not show what a large model saves. Their product models a run; nobody
measured that run.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from experiments.fidelity.stages import MODELS, ROLLING, Results
from experiments.fidelity.tables import Row, Stage, looks, loss_at, number, shares, spread, table
from experiments.harness import read_documents
from experiments.step.step_ways import NATIVE, rolling

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
BLOCK_FILE = EXPERIMENTS / "step/results.jsonl"
BLOCK_DOCUMENT = "host_1b_rolling"
TIMES = (100, 200)  # Times in steps of native AdamW, whose runs have 200.


def step_ratios(checkpointing: bool) -> dict[str, float]:
    """Ratio of each way's seconds to native's in the same round; medians over the rounds."""
    seconds = {
        (row["way"], row["round"]): row["mean_seconds"]
        for row in read_documents(BLOCK_FILE)[BLOCK_DOCUMENT]["rows"]
        if row["checkpointing"] == checkpointing
    }
    return {
        way: statistics.median(
            took / seconds[NATIVE, number] for (other, number), took in seconds.items()
            if other == way
        )
        for way in {way for way, _ in seconds}
    }  # fmt: skip


def way_of(row: Row) -> str:
    """Name of a row's method in the experiment of steps."""
    every = next((k for k, method in ROLLING.items() if method == row.best.method), 0)
    return NATIVE if every == 0 else rolling(row.best.ratio, every)


def losses_at(results: Results, row: Row, ratio: float) -> list[str]:
    """Losses of the glance set at each of TIMES; a run that has ended keeps its last loss."""
    curves = [
        [(look.step * ratio, look.loss) for look in looks(results, job)] for job in row.jobs()
    ]
    found = [[loss_at(curve, time) for curve in curves] for time in TIMES]
    return ["-" if None in losses else number(statistics.median(losses)) for losses in found]


def model_table(results: Results, stage: Stage, name: str) -> str:
    """Tabulate the rows of one model, ordered by the seconds of their steps."""
    plain, recomputed = step_ratios(False), step_ratios(True)
    lines = []
    for row in stage.rows:
        if row.best.model != name:
            continue
        way, native = way_of(row), stage.native(row)
        share = "-" if native is None else spread(shares(results, row.jobs(), native.jobs()), ".3f")
        final = spread([results.loss(job) for job in row.jobs()])
        cells = (way, f"{plain[way]:.3f}", f"{recomputed[way]:.3f}", f"{row.best.lr:g}", final,
                 share, *losses_at(results, row, plain[way]))  # fmt: skip
        lines.append((plain[way], cells))
    then = (f"loss when AdamW has made {n} steps" for n in TIMES)
    columns = ("way", "step to native's", "with checkpointing", "best lr", "loss after 200 steps",
               "share of AdamW's gain", *then)  # fmt: skip
    return table(columns, [cells for _, cells in sorted(lines)])


def document(results: Results) -> str:
    """Return the text of LOSSES.md."""
    stage = Stage(results, "rolling")
    parts = [
        "# Residuals in turns: loss against time\n\nWritten by `experiments/fused/losses.py`. "
        "Losses: nats a byte on held-out prose, three seeds, each way at its best rate. Steps: a "
        f"block of the 1b shape, 2,048 tokens, host device (`{BLOCK_DOCUMENT}` of "
        f"`../step/{BLOCK_FILE.name}`). The last columns join the two, so they are modelled: "
        "losses on the glance set along a run, at the block's pace; a faster run that has ended "
        "keeps its last loss.",
        *(f"## {name}\n\n{model_table(results, stage, name)}" for name in MODELS),
    ]
    if stage.missing:
        parts.append(f"Rows not complete: {stage.missing}.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the tables."""
    target = HERE / "LOSSES.md"
    target.write_text(document(Results(EXPERIMENTS / "fidelity/results.jsonl")))
    print(target)


if __name__ == "__main__":
    main()
