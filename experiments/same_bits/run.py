"""Check that two commits train to the same bits: build both, run the same list, and compare.

    python -m experiments.same_bits.run OLD NEW [--out FILE.json] [--only NAME ...] [--keep DIR]

All runs use one machine and one thread, since bits depend on processor and threads. The script
compares the bytes of final weights, of the optimizer's values that both sides name alike, and of
the losses, norms and rates of every step. It prints run, verdict and first difference, and exits
with 1 if a difference is not in EXPECTED. `--only` takes the beginning of a name. `--keep` takes a
folder for both builds and the files of the runs; the same commits reuse the builds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.same_bits.checkouts import Side, both_sides, machine
from experiments.same_bits.command_runs import command_runs
from experiments.same_bits.compare import Verdict, compare, of_small_run
from experiments.same_bits.small_runs import RUNS as SMALL_RUNS

_CLIPPED = "torch's clip_grad_norm_ adds up norms of weights, where it added up one for all"
# Runs whose bits change on purpose: the first step that differs, and the reason.
EXPECTED: dict[str, tuple[int, str]] = {
    "block_pca, paper, refresh": (0, _CLIPPED),
    "identity, tied": (0, _CLIPPED),
    "svd, fp16, GradScaler": (2, _CLIPPED),
    "svd, bf16 residual update, resumed": (
        1, "the weight whose .grad stood for all had a gradient of f32, and now has one of bf16",
    ),
}  # fmt: skip


def run_small(names: list[str], side: Side, folder: Path) -> None:
    """Run all small runs of a side in one process."""
    script = Path(__file__).with_name("small_runs.py")
    command = [str(side.python), str(script), str(folder), "--only", *names]
    subprocess.run(command, cwd=side.checkout, env=side.environment, check=False)


def run_all(names: list[str], folder: Path, old: Side, new: Side) -> list[Verdict]:
    """Make every requested run, on the old side, then on the new one."""
    commands, verdicts = command_runs(), []
    shutil.rmtree(folder / "runs", ignore_errors=True)
    folders = {side: folder / "runs" / side.name for side in (old, new)}
    for name in (n for n in names if n in commands):
        print(name, flush=True)
        verdicts.append(compare(name, *(commands[name](s, path) for s, path in folders.items())))
    if small := [name for name in names if name in SMALL_RUNS]:
        print(f"{len(small)} small runs", flush=True)
        for side, path in folders.items():
            run_small(small, side, path / "small")
        for name in small:
            left = (of_small_run(path / "small" / name) for path in folders.values())
            verdicts.append(compare(name, *left))
    return verdicts


def is_expected(verdict: Verdict) -> bool:
    """Tell whether EXPECTED names the run, and no step before the one named there differs."""
    if verdict.name not in EXPECTED:
        return False
    return verdict.first_step is None or verdict.first_step >= EXPECTED[verdict.name][0]


def word(verdict: Verdict) -> str:
    """Word for a run in the table."""
    if verdict.same:
        return "same"
    return "expected" if is_expected(verdict) else "DIFFERS"


def table_of(verdicts: list[Verdict]) -> Table:
    """Format one row for each run."""
    table = Table("run", "same?", "first difference", "state compared", box=None, pad_edge=False)
    for verdict in verdicts:
        why = f" ({EXPECTED[verdict.name][1]})" if word(verdict) == "expected" else ""
        first = escape(verdict.first_difference + why)
        table.add_row(verdict.name, word(verdict), first, verdict.state)
    return table


def main() -> None:
    """Build, run, compare; print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", help="a commit")
    parser.add_argument("--out", type=Path, help="JSON file for the verdicts")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names of runs")
    parser.add_argument("--keep", type=Path, help="folder for builds and runs, kept")
    args = parser.parse_args()
    names = [n for n in (*command_runs(), *SMALL_RUNS) if n.startswith(tuple(args.only))]
    if not names:
        every = "\n  ".join((*command_runs(), *SMALL_RUNS))
        parser.error(f"--only {' '.join(args.only)}: no run begins so; the runs are\n  {every}")
    with both_sides(args.old, args.new, args.keep) as (folder, old, new):
        verdicts = run_all(names, folder, old, new)
    Console(width=None if sys.stdout.isatty() else 160).print(table_of(verdicts))
    if args.out is not None:
        runs = [{**v.as_json(), "verdict": word(v)} for v in verdicts]
        result = {"old": old.described(), "new": new.described(), "machine": machine(),
                  "expected": EXPECTED, "runs": runs}  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    odd = [verdict.name for verdict in verdicts if word(verdict) == "DIFFERS"]
    print(f"{len(verdicts)} runs, {len(odd)} differ" + (f": {'; '.join(odd)}" if odd else ""))
    sys.exit(1 if odd else 0)


if __name__ == "__main__":
    main()
