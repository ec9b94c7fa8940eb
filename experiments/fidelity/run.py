"""Run the whole experiment in one command, resumable: each fine-tune is a row of results.jsonl.

    python -m experiments.fidelity.run               # all stages, two fine-tunes at a time
    python -m experiments.fidelity.run --only screen # one of them
    python -m experiments.fidelity.run --count       # what is done and what is left
    python -m experiments.fidelity.run --table       # writes RESULTS.md

Each stage is planned from the results of earlier stages. A finished fine-tune is never repeated;
Ctrl-C loses the fine-tunes that are running.
"""

from __future__ import annotations

from pathlib import Path

from experiments.fidelity.stages import STAGES, Results
from experiments.fidelity.tables import document
from experiments.fidelity.train_one import run
from experiments.harness import Study, run_study

STUDY = Study(
    Path(__file__).with_name("results.jsonl"), Results, STAGES, run, document, "RESULTS.md"
)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
