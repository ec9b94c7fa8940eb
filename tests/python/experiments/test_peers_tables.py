"""The tables of experiments/peers are those of its results, and do their sums."""

from __future__ import annotations

import json

from conftest import REPOSITORY

from experiments.peers.child import figures
from experiments.peers.peer_tables import ALONE, above, slope, spread, tables, written

FOLDER = REPOSITORY / "experiments" / "peers"


def test_readme_has_the_tables_of_the_results() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    made = tables(json.loads((FOLDER / "results.json").read_text(encoding="utf-8")))
    names = {"memory", "compared", "streamed", "tuning", "kills", "refused"}
    assert set(made) == names
    assert [name for name, table in made.items() if table not in readme] == []


def test_a_table_replaces_what_stands_in_its_place_and_nothing_else() -> None:
    text = "a\n<!-- one -->\nold\nold\n<!-- -->\nb\n<!-- two -->\n<!-- -->\nc\n"
    assert written(text, {"one": "| 1 |", "two": "| 2 |"}) == (
        "a\n<!-- one -->\n| 1 |\n<!-- -->\nb\n<!-- two -->\n| 2 |\n<!-- -->\nc\n"
    )


def test_peaks_are_above_the_median_of_the_model_alone_at_the_same_size() -> None:
    rows = [{"name": ALONE, "size": size, "peak_bytes": peak}
            for size, peak in (("1M", 90), ("1M", 100), ("1M", 200), ("2M", 1000))]  # fmt: skip
    ours = [{"name": "ours", "size": "1M", "peak_bytes": 150}]
    assert above([*rows, *ours], ours) == [50]


def test_slope_is_bytes_for_each_parameter_more() -> None:
    assert slope([(1.0, 7.0), (2.0, 11.0), (4.0, 19.0)]) == 4.0


def test_spread_names_the_ends_where_they_can_be_told_apart() -> None:
    assert spread([3.0, 1.0, 2.0], 0) == "2 (1 to 3)"
    assert spread([1.001, 1.002], 2) == "1.00"


def test_figures_count_from_the_end_of_the_warm_up_for_each_step_and_parameter() -> None:
    memory = {"resident": 0, "locked": 3}
    events = [
        {"event": "ready", "parameters": 10, "before": 100, "seconds": 1.0, "peak": 150, **memory},
        {"event": "step", "loss": 5.0, "peak": 400, **memory},
        {"event": "warm", "at": 10.0, "read": 1000, "written": 2000, "peak": 120, **memory},
        {"event": "step", "loss": 4.0, "peak": 300, **memory},
        {"event": "step", "loss": 3.0, "peak": 300, **memory},
        {"event": "done", "at": 14.0, "read": 1240, "written": 2280, "peak": 300, "room": 7,
         "buffers": 9, **memory},
    ]  # fmt: skip
    row = figures(events, steps=3, warmup=1)
    assert (row["seconds"], row["read"], row["written"]) == (2.0, 12.0, 14.0)
    assert (row["peak_bytes"], row["steady_peak_bytes"]) == (300, 200)
    assert row["losses"] == [5.0, 4.0, 3.0]
