"""`sluiceway bench`: each table is there, and its figures follow from each other."""

from __future__ import annotations

import json

import pytest
from conftest import assert_short_error


def measured(outcome, name):
    """What --json says of one bench."""
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said.keys() == {name}
    return said[name]


def test_link_is_a_table_of_copies_by_size(sluiceway):
    found = measured(sluiceway("bench", "link", "--json"), "link")
    sizes = [row["bytes"] for row in found["rows"]]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 64 << 20
    for row in found["rows"]:
        for way in ("d2h", "h2d"):
            expected = row["bytes"] / row["seconds"][way] / 1e9
            assert row[f"{way}_gbps"] == pytest.approx(expected)
    table = sluiceway("bench", "link").out.splitlines()
    assert len(table) == 2 + len(sizes)


def test_kernels_are_compared_with_a_copy_of_the_same_run(sluiceway):
    found = measured(sluiceway("bench", "kernels", "--json"), "kernels")
    roof, *kernels = found["rows"]
    assert (roof["name"], roof["of_roof"]) == ("copy", 1.0)
    assert roof["bytes"] == 2 * 4 * found["elements"]
    per_element = {row["name"]: row["bytes"] / found["elements"] for row in kernels}
    assert per_element == {
        "adam_step fp32": 28, "adam_step bf16, stochastic": 22, "torch AdamW, fused fp32": 28
    }  # fmt: skip
    for row in kernels:
        assert row["gbps"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert row["of_roof"] == pytest.approx(row["gbps"] / roof["gbps"])


def test_disk_is_measured_where_asked_and_nothing_is_left(sluiceway, tmp_path):
    outcome = sluiceway("bench", "disk", "--path", tmp_path)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[0].startswith(f"disk: {tmp_path}, ")
    rates = [float(line.split()[1]) for line in outcome.out.splitlines()[2:]]
    assert len(rates) == 2
    assert min(rates) > 0
    assert list(tmp_path.iterdir()) == []


def test_step_of_the_default_engine_has_its_ratio_to_native_and_its_bytes(
    sluiceway, small_model, write_config, tmp_path
):
    config = write_config(small_model, engine={"kind": "subspace", "codec": "block_random"})
    outcome = sluiceway("bench", "step", "--config", config, "--steps", 5, "--json", cwd=tmp_path)
    found = measured(outcome, "step")
    native, mine = found["rows"]
    assert (native["engine"], mine["engine"], found["steps"]) == ("native", "subspace", 5)
    expected = mine["median_step_seconds"] / native["median_step_seconds"]
    assert mine["native_ratio"] == pytest.approx(expected)
    assert native["bytes_per_step"] == {"d2h": 0, "h2d": 0, "disk_read": 0, "disk_written": 0}
    assert min(mine["bytes_per_step"][way] for way in ("d2h", "h2d")) > 0
    assert not (tmp_path / "runs").exists()


def test_step_of_native_alone_is_a_table_without_a_ratio(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(tiny_model)
    before = sorted(tmp_path.iterdir())
    outcome = sluiceway("bench", "step", "--config", config, "--steps", 4, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    head, names, native = outcome.out.splitlines()
    assert "4 steps each on host, link not throttled" in head
    row = dict(zip(names.replace("x native", "ratio").split(), native.split(), strict=False))
    assert (row["engine"], row["ratio"]) == ("native", "-")
    assert float(row["s/step"]) > 0
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speed"], ["'speed'"]),
        (["step"], ["configs/quickstart.yaml: cannot read the config"]),
        (["step", "--config", "run.yaml"], ["model.path: m is not there"]),
        (["step", "--config", "run.yaml", "--set", "train.stebs=1"], ["unknown key train.stebs"]),
        (["disk", "--path", "none"], ["none is not a folder"]),
    ],
)
def test_bench_says_what_is_wrong_in_two_lines(sluiceway, tmp_path, arguments, words):
    (tmp_path / "run.yaml").write_text("model: {path: m}\ndata: {train: pydoc}\n")
    assert_short_error(sluiceway("bench", *arguments, cwd=tmp_path), 2, *words)
