"""Run the whole experiment in one command, resumable: each fine-tune is a row of results.jsonl.

    python -m experiments.fidelity.run                 # all stages, two at a time
    python -m experiments.fidelity.run --stages screen # one of them
    python -m experiments.fidelity.run --count         # what is done and what is left

Each stage is planned from the results of earlier stages, so it begins when they are complete. A
finished fine-tune is never repeated; Ctrl-C loses the fine-tunes that are running.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

from experiments.fidelity.row_lines import Row, append_row
from experiments.fidelity.stages import STAGES, Results
from experiments.fidelity.train_one import Job, asked_for

RESULTS = Path(__file__).with_name("results.jsonl")


def work(job: Job) -> Row:
    """Run one job in a worker and return its row."""
    import torch

    from experiments.fidelity.train_one import run
    from experiments.quickstart.run_folder import provenance

    torch.set_num_threads(1)
    return {**run(job), **provenance()}


def begin_worker() -> None:
    """Let a worker end on the terminal's Ctrl-C without printing a traceback."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Run the fine-tunes that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--count", action="store_true", help="run nothing")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    for name in args.stages:
        while True:  # A stage may ask for more rates, once it has seen some.
            results = Results(RESULTS)
            jobs = list(dict.fromkeys(STAGES[name](results)))
            missing = [job for job in jobs if not results.has(job)]
            print(f"{name}: {len(jobs) - len(missing)} of {len(jobs)} done", flush=True)
            if not missing or args.count:
                break
            with context.Pool(args.workers, begin_worker, maxtasksperchild=50) as pool:
                for done, row in enumerate(pool.imap_unordered(work, missing), 1):
                    append_row(RESULTS, row)
                    print(f"  {done}/{len(missing)} {asked_for(row).key}", flush=True)


if __name__ == "__main__":
    main()
