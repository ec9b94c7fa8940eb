"""The page of experiments/distributed has the table of its rows."""

from __future__ import annotations

from conftest import REPOSITORY

from experiments.distributed.wire import RESULTS, table
from experiments.harness import read_rows


def test_page_has_the_table_of_the_rows():
    rows = read_rows(RESULTS)
    assert table(rows) in (REPOSITORY / "experiments/distributed/README.md").read_text()


def test_bytes_that_the_kernel_counted_are_those_of_the_formula():
    for row in read_rows(RESULTS):
        if row["formula_bytes"] > 1_000_000:
            assert 1 <= row["sent_bytes"] / row["formula_bytes"] < 1.03
