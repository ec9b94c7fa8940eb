"""Run the whole experiment in one command, resumable: each fine-tune is a row of results.jsonl.

    python -m experiments.offload_codec.run                # all stages, two fine-tunes at a time
    python -m experiments.offload_codec.run --only screen  # one of them
    python -m experiments.offload_codec.run --count        # what is done and what is left
    python -m experiments.offload_codec.run --table        # writes RESULTS.md

A stage asks for more rates once it has seen some. Ctrl-C loses the fine-tunes that are running.
"""

from __future__ import annotations

from pathlib import Path

from experiments.fidelity.stages import Results
from experiments.fidelity.train_one import Job, run
from experiments.harness import Row, Study, run_study
from experiments.offload_codec import through_engine
from experiments.offload_codec.compared import document
from experiments.offload_codec.rows import STAGES
from experiments.offload_codec.simulate import Simulation


def measured(job: Job) -> Row:
    """Return the row of one job, which the simulation or the engine trains."""
    if job.method.startswith(through_engine.PREFIX):
        return run(job, through_engine.trainee)
    simulation = Simulation()
    return {**run(job, simulation.trainee), **simulation.figures()}


STUDY = Study(
    Path(__file__).with_name("results.jsonl"), Results, STAGES, measured, document, "RESULTS.md"
)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
