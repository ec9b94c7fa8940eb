"""Runs the whole experiment on the worth of a core in one command, resumable.

    python -m experiments.regimes.run                  # what is missing, two fine-tunes at a time
    python -m experiments.regimes.run --count          # how many are left, in core-hours
    python -m experiments.regimes.run --only core b1   # these questions alone
    python -m experiments.regimes.run --table          # writes RESULTS.md

A run recorded in results/ is never repeated; Ctrl-C loses the runs that are in progress.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
os.environ["OMP_NUM_THREADS"] = "1"  # Before torch is imported.

from experiments.fidelity.row_lines import Row  # noqa: E402
from experiments.fidelity.tasks import perl_modules  # noqa: E402
from experiments.quickstart.run_folder import commit_here  # noqa: E402
from experiments.regimes.fine_tunes import Run, measured  # noqa: E402
from experiments.regimes.hours import Hours  # noqa: E402
from experiments.regimes.questions import QUESTIONS  # noqa: E402
from experiments.regimes.regime_tables import document, write_results  # noqa: E402
from experiments.regimes.shelf import Shelf  # noqa: E402
from experiments.regimes.starts import make_young  # noqa: E402
from experiments.regimes.turns import Left, left, plan, starts_of, texts_of, work_off  # noqa: E402

MOST_CORE_HOURS = 30.0


def work(run: Run) -> Row:
    """Measure one run in a worker."""
    import torch

    from experiments.quickstart.run_folder import provenance

    torch.set_num_threads(1)
    return {**measured(run), **provenance()}


def prepare(lines: list[Left]) -> None:
    """Prepare every text and start that is needed, or say what is missing."""
    if "perl" in texts_of(lines):
        try:
            perl_modules()
        except FileNotFoundError as error:
            sys.exit(str(error))
    if "young" in starts_of(lines):
        make_young()


def run_all(args: argparse.Namespace, shelf: Shelf) -> int:
    """Run what is left; return the exit status."""
    context = multiprocessing.get_context("spawn")
    questions = [q for q in QUESTIONS if q.name in args.only]
    # Workers end with the terminal's Ctrl-C, without a traceback each.
    silent = (signal.signal, (signal.SIGINT, signal.SIG_DFL))
    with ProcessPoolExecutor(args.jobs, context, *silent) as pool:
        try:
            outcome = work_off(questions, shelf, pool, args.jobs, work, args.most_core_hours,
                               lambda line: print(line, flush=True))  # fmt: skip
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            print("\nstopped; finished runs are kept, repeat the command to continue")
            return 130
    hours = outcome.core_seconds / 3600  # Runs of earlier calls too.
    why = f"at --most-core-hours {args.most_core_hours:g}" if outcome.stopped else "nothing is left"
    print(f"{outcome.done} runs, {hours:.2f} core-hours; {len(outcome.failed)} failed; {why}")
    return 1 if outcome.failed else 0


def main() -> None:
    """Run what is missing, print, or write tables."""
    names = [question.name for question in QUESTIONS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="QUESTION",
                        help=f"of {', '.join(names)}")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="at a time, one thread each (2)")
    budget = f"stop before a run that would go over it ({MOST_CORE_HOURS:g})"
    parser.add_argument("--most-core-hours", type=float, default=MOST_CORE_HOURS, help=budget)
    parser.add_argument("--count", action="store_true", help="count the missing runs, run nothing")
    parser.add_argument("--table", action="store_true", help="write RESULTS.md, run nothing")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    args = parser.parse_args()
    os.environ["SLUICEWAY_COMMIT"] = commit_here()  # Commit of the code that workers load.
    shelf = Shelf(args.results)
    if args.table:
        write_results(shelf, args.results.parent)
        return
    lines = left([q for q in QUESTIONS if q.name in args.only], shelf.found())
    print(plan(lines, Hours(shelf.all_rows().values())), flush=True)
    if not args.count:
        try:
            with shelf.alone():
                document(shelf)  # Refuses rows that no table can show before hours pass.
                prepare(lines)
                sys.exit(run_all(args, shelf))
        except BlockingIOError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
