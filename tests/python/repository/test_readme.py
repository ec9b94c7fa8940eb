"""README stays short, and its table of what fits is that of the experiment."""

from __future__ import annotations

from conftest import REPOSITORY

from experiments.harness import read_rows
from experiments.plan.what_fits import MACHINES, MODELS, RESULTS, table

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_table_of_what_fits_is_that_of_the_experiment():
    rows = read_rows(RESULTS)
    assert len(rows) == len(MODELS) * len(MACHINES)
    assert table(rows) in README


def test_readme_is_short_and_its_cells_are_too():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell.split()) > 25] == []
