"""The whole experiment in one command, resumable: every fine-tune is a file of its own.

    python experiments/offload_codec/run.py                  # all stages, one fine-tune at a time
    python experiments/offload_codec/run.py --stages screen  # one of them
    python experiments/offload_codec/run.py --count          # what is left, in core-hours
    python experiments/offload_codec/run.py --table          # writes RESULTS.md

A stage asks for more rates once it has seen some. Ctrl-C loses the fine-tune that is running.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER.parent / name) for name in ("fidelity", "quickstart")]
os.environ["OMP_NUM_THREADS"] = "1"  # Before torch is imported.

from rows import STAGES, estimated_seconds  # noqa: E402
from stages import Results  # noqa: E402
from train_one import Job  # noqa: E402

RESULTS = FOLDER / "results"


def missing(name: str) -> tuple[list[Job], int]:
    """List the jobs that a stage still needs, and count all its jobs so far."""
    results = Results(RESULTS)
    jobs = list(dict.fromkeys(STAGES[name](results)))
    return [job for job in jobs if not results.has(job)], len(jobs)


def announce(name: str) -> None:
    """Runs and core-hours, as far as is known."""
    left, asked = missing(name)
    hours = sum(map(estimated_seconds, left)) / 3600
    print(f"{name}: {asked - len(left)} of {asked} done, {hours:.2f} core-hours left, more where "
          "the best rate is at an edge", flush=True)  # fmt: skip


def work(job: Job) -> None:
    """Run one job and write its file whole or not at all."""
    import through_engine
    import torch
    from run_folder import provenance
    from simulate import Simulation
    from train_one import run

    torch.set_num_threads(1)
    simulation = Simulation()
    if job.method.startswith(through_engine.PREFIX):
        done = run(job, through_engine.trainee)
    else:
        done = {**run(job, simulation.trainee), **simulation.figures()}
    done |= provenance()
    partial = RESULTS / f"{job.key}.tmp"
    partial.write_text(json.dumps(done, indent=1) + "\n")
    partial.rename(RESULTS / f"{job.key}.json")


def main() -> None:
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--count", action="store_true", help="run nothing")
    parser.add_argument("--table", action="store_true", help="run nothing, write RESULTS.md")
    args = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if args.table:
        from compared import document

        (FOLDER / "RESULTS.md").write_text(document(Results(RESULTS)))
        return
    for name in args.stages:
        announce(name)
        while not args.count and (left := missing(name)[0]):
            work(left[0])
            print(f"  {len(left) - 1} left, {left[0].key}", flush=True)


if __name__ == "__main__":
    main()
