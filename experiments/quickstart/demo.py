"""The demo: one model, one throttled link, fine-tuned three ways; then a table and a picture.

    python experiments/quickstart/demo.py        (what `make demo` runs)

Every number comes from the run folders that `sluiceway train` has just written.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from run_folder import REPOSITORY, RunFolder, provenance, train

NATIVE = {"engine": {"kind": "native", "embeddings": "frozen"}}
BARRIER = {"engine.codec": "identity", "schedule.order": "barrier"}
# All three train the same weights: the byte embedding and the tied head are frozen.
WAYS = {
    "native AdamW": ("native", NATIVE),
    "full gradients": ("barrier", BARRIER),
    "Sluiceway": ("sluiceway", {}),
}


def mebibytes(count: float) -> str:
    """Format bytes as MiB with three digits."""
    return f"{count / 2**20:.3g}"


def table_of(runs: dict[str, RunFolder]) -> Table:
    """Build the table; the first run is what the others are measured against."""
    table = Table(
        title="Three ways to fine-tune the same model over the same link",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )  # 80 columns hold it.
    columns = ("", "s per\nstep", "of\nnative", "d2h\nMiB", "h2d\nMiB", "stall\n%", "device\nMiB",
               "host\nMiB", "pinned\nMiB", "loss\nbefore", "loss\nafter")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    native = next(iter(runs.values())).step_seconds
    for name, run in runs.items():
        table.add_row(
            name,
            f"{run.step_seconds:.3f}",
            f"{run.step_seconds / native:.2f}x",
            mebibytes(run.bytes_per_step("d2h")),
            mebibytes(run.bytes_per_step("h2d")),
            f"{100 * run.stall_share:.1f}",
            *(mebibytes(run.peak_bytes(tier)) for tier in ("device", "host", "pinned")),
            f"{run.loss_before:.3f}",
            f"{run.loss_after:.3f}",
        )
    return table


def kept_gain(runs: dict[str, RunFolder]) -> str:
    """Say which share of native's gain in held-out loss each other run kept."""
    (_, native), *others = runs.items()
    gain = native.loss_before - native.loss_after
    shares = ", ".join(
        f"{name} {100 * (run.loss_before - run.loss_after) / gain:.0f} %" for name, run in others
    )
    return f"native gained {gain:.3f} nats a byte on held-out text; of that kept: {shares}"


def main() -> None:
    """Run the three ways, then print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs/demo")
    parser.add_argument("--steps", type=int, help="instead of the config's")
    parser.add_argument("--show", action="store_true", help="table and picture of runs there are")
    args = parser.parse_args()
    from demo_picture import draw

    console = Console()
    began = time.monotonic()
    runs = {}
    for place, (name, (folder, overrides)) in enumerate(WAYS.items(), start=1):
        if args.show:
            runs[name] = RunFolder(args.out / folder)
            continue
        console.rule(f"{place} of {len(WAYS)}: {name}")
        steps = {"train.steps": args.steps} if args.steps else {}
        runs[name] = train(args.config, args.out / folder, {**overrides, **steps})
    summaries = {name: run.summary for name, run in runs.items()}
    results = {**provenance(), "link": "throttled", "runs": summaries}
    (args.out / "demo.json").write_text(json.dumps(results, indent=1) + "\n")
    picture = args.out / "demo.png"
    draw(runs, picture)
    console.print(table_of(runs))
    console.print(kept_gain(runs))
    console.print(
        "full gradients: offloaded with barriers; medians over steps; bytes of a step, "
        "highest bytes per tier; stall: the device waited for a link or the host"
    )
    console.print(f"picture: {picture}   ({time.monotonic() - began:.0f} s in all)")


if __name__ == "__main__":
    main()
