"""Run the whole experiment in one command, resumable: each fine-tune is a row of results.jsonl.

    python -m experiments.offload_codec.run                  # all stages, one fine-tune at a time
    python -m experiments.offload_codec.run --stages screen  # one of them
    python -m experiments.offload_codec.run --count          # what is left, in core-hours
    python -m experiments.offload_codec.run --table          # writes RESULTS.md

A stage asks for more rates once it has seen some. Ctrl-C loses the fine-tune that is running.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
os.environ["OMP_NUM_THREADS"] = "1"  # Before torch is imported.

from experiments.fidelity.row_lines import append_row  # noqa: E402
from experiments.fidelity.stages import Results  # noqa: E402
from experiments.fidelity.train_one import Job  # noqa: E402
from experiments.offload_codec.rows import STAGES, estimated_seconds  # noqa: E402

RESULTS = FOLDER / "results.jsonl"


def missing(name: str) -> tuple[list[Job], int]:
    """List the jobs that a stage still needs, and count all its jobs so far."""
    results = Results(RESULTS)
    jobs = list(dict.fromkeys(STAGES[name](results)))
    return [job for job in jobs if not results.has(job)], len(jobs)


def announce(name: str) -> None:
    """Print how many runs and core-hours are left, as far as known."""
    left, asked = missing(name)
    hours = sum(map(estimated_seconds, left)) / 3600
    print(f"{name}: {asked - len(left)} of {asked} done, {hours:.2f} core-hours left, more where "
          "the best rate is at an edge", flush=True)  # fmt: skip


def work(job: Job) -> None:
    """Run one job and append its row."""
    import torch

    from experiments.fidelity.train_one import run
    from experiments.offload_codec import through_engine
    from experiments.offload_codec.simulate import Simulation
    from experiments.quickstart.run_folder import provenance

    torch.set_num_threads(1)
    simulation = Simulation()
    if job.method.startswith(through_engine.PREFIX):
        done = run(job, through_engine.trainee)
    else:
        done = {**run(job, simulation.trainee), **simulation.figures()}
    append_row(RESULTS, {**done, **provenance()})


def main() -> None:
    """Run the missing jobs, or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--count", action="store_true", help="run nothing")
    parser.add_argument("--table", action="store_true", help="run nothing, write RESULTS.md")
    args = parser.parse_args()
    if args.table:
        from experiments.offload_codec.compared import document

        (FOLDER / "RESULTS.md").write_text(document(Results(RESULTS)))
        return
    for name in args.stages:
        announce(name)
        while not args.count and (left := missing(name)[0]):
            work(left[0])
            print(f"  {len(left) - 1} left, {left[0].key}", flush=True)


if __name__ == "__main__":
    main()
