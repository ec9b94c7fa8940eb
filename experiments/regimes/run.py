"""Runs the whole experiment on the worth of a core in one command, resumable.

    python -m experiments.regimes.run                  # what is missing, two fine-tunes at a time
    python -m experiments.regimes.run --count          # how many are done and left
    python -m experiments.regimes.run --only core b1   # these questions alone
    python -m experiments.regimes.run --table          # writes RESULTS.md

A run that has a row in results.jsonl is never repeated; Ctrl-C loses the runs that are in progress.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from experiments.fidelity.stages import Results
from experiments.harness import Study, run_study
from experiments.regimes.fine_tunes import asked_for, measured
from experiments.regimes.questions import QUESTIONS, wanted
from experiments.regimes.regime_tables import document

STUDY = Study(
    Path(__file__).with_name("results.jsonl"),
    partial(Results, asked_for=asked_for),
    {question.name: partial(wanted, question) for question in QUESTIONS},
    measured,
    document,
    "RESULTS.md",
)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
