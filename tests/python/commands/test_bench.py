"""`sluiceway bench`: each table is there, and its figures follow from each other."""

from __future__ import annotations

import json

import pytest
import sluiceway as sw
import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.
from conftest import assert_short_error
from sluiceway.commands.bench import bench_disk, describe_disk
from sluiceway.commands.kernel_bench import bench_device
from sluiceway.machine import disk


def measured(outcome, name):
    """Parse the result of one bench from --json."""
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
        "adam_step fp32": 28, "adam_step bf16, stochastic": 22, "torch AdamW, fused fp32": 28,
        "compress fp32": 4.25, "decompress fp32": 8.25, "compress bf16": 2.25,
        "decompress bf16": 4.25
    }  # fmt: skip
    assert found["device"] == ("cuda:0" if bench_device().type == "cuda" else "host")
    for row in kernels:
        assert row["gbps"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert row["of_roof"] == pytest.approx(row["gbps"] / roof["gbps"])


@pytest.fixture
def without_fio(tmp_path_factory, monkeypatch):
    """A PATH with nothing on it."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("bin")))


@pytest.fixture
def fake_fio(tmp_path_factory, monkeypatch):
    """Put on PATH a fio that prints what it is told, and what it was asked; its folder."""
    folder = tmp_path_factory.mktemp("bin")

    def make(answer: str, code: int = 0) -> None:
        (folder / "answer").write_text(answer)
        script = (
            f'#!/bin/sh\necho "$@" >> {folder}/asked\n/bin/cat {folder}/answer\n'
            f"echo 'fio: it went wrong' >&2\nexit {code}\n"
        )
        (folder / "fio").write_text(script)
        (folder / "fio").chmod(0o755)

    monkeypatch.setenv("PATH", str(folder))
    make.folder = folder
    return make


def fio_answer(read: int, write: int) -> str:
    """A job of a second, of these bytes, as fio prints it."""
    ways = {name: {"io_bytes": count, "runtime": 1000 if count else 0}
            for name, count in (("read", read), ("write", write))}  # fmt: skip
    return json.dumps({"jobs": [{**ways, "usr_cpu": 10, "sys_cpu": 40, "job_runtime": 1000}]})


def test_disk_is_measured_both_ways_where_asked_and_nothing_is_left(tmp_path, without_fio):
    found = bench_disk(tmp_path, size=8 << 20, seconds=0.02)
    assert list(tmp_path.iterdir()) == []
    assert (found["path"], found["bytes"]) == (str(tmp_path), 8 << 20)
    assert (found["block_bytes"], found["depth"]) == (4 << 20, 32)
    uring, posix, fio = found["rows"]
    assert [row["name"] for row in found["rows"]] == ["uring", "posix", "fio"]
    measured_rows = [posix] if "read" not in uring else [uring, posix]
    for row in measured_rows:
        assert row["backend"] == row["name"]
        assert min(row[mix]["gbps"] for mix in ("read", "write", "both")) > 0
    assert fio == {"name": "fio", "note": "not run: fio is not installed"}
    table = describe_disk(found)
    assert table.splitlines()[0].startswith(f"disk: {tmp_path}, 32 requests of 4 MiB at once, ")
    assert table.splitlines()[-1] == "fio: not run: fio is not installed"


def test_fio_is_asked_for_the_same_blocks_depth_and_mix(tmp_path, fake_fio):
    fake_fio(fio_answer(read=3 * 10**9, write=10**9))
    row = bench_disk(tmp_path, size=8 << 20, seconds=0.02)["rows"][-1]
    assert row["both"] == {"gbps": 4.0, "bytes": 4 * 10**9, "processor_s_per_gb": 0.125}
    asked = (fake_fio.folder / "asked").read_text().splitlines()
    assert [line.rpartition("--rw=")[2] for line in asked] == ["read", "write", "rw"]
    for line in asked:
        for option in ("--bs=4194304", "--iodepth=32", "--size=8388608", "--runtime=20ms"):
            assert option in line.split()


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("no JSON at all", 0, "not run: fio did not answer"),
        ('{"jobs": []}', 0, "not run: fio did not answer"),
        (fio_answer(0, 0), 0, "not run: fio failed: fio: it went wrong"),
        (fio_answer(5, 5), 1, "not run: fio failed: fio: it went wrong"),
    ],
)
def test_fio_that_fails_is_a_line_and_no_error(tmp_path, fake_fio, answer, code, words):
    fake_fio(answer, code)
    row = bench_disk(tmp_path, size=8 << 20, seconds=0.02)["rows"][-1]
    assert row["note"].startswith(words)


def test_disk_without_io_uring_says_so_and_fio_takes_its_other_engine(
    tmp_path, monkeypatch, fake_fio
):
    rates = disk.file_rates

    def refuse_uring(path, mixes, io, *rest):
        if io == "uring":
            raise sw.Unavailable("uring: not permitted")
        return rates(path, mixes, io, *rest)

    monkeypatch.setattr(disk, "file_rates", refuse_uring)
    fake_fio(fio_answer(1, 1))
    found = bench_disk(tmp_path, size=8 << 20, seconds=0.02)
    assert found["rows"][0] == {"name": "uring", "note": "not run: uring: not permitted"}
    assert found["rows"][2]["name"] == "fio, libaio"
    assert "uring: not run: uring: not permitted" in describe_disk(found).splitlines()


def test_disk_of_the_command_line_is_one_table(sluiceway, tmp_path):
    found = measured(sluiceway("bench", "disk", "--path", tmp_path, "--json"), "disk")
    assert found["path"] == str(tmp_path)
    assert found["rows"][1]["read"]["gbps"] > 0
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
        (["step"], ["no run to measure", "give --config CONFIG"]),
        (["step", "--config", "run.yaml"], ["model.path: m does not exist"]),
        (["step", "--config", "run.yaml", "--set", "train.stebs=1"], ["unknown key train.stebs"]),
        (["disk", "--path", "none"], ["none is not a folder"]),
    ],
)
def test_bench_says_what_is_wrong_in_two_lines(sluiceway, tmp_path, arguments, words):
    (tmp_path / "run.yaml").write_text("model: {path: m}\ndata: {train: pydoc}\n")
    assert_short_error(sluiceway("bench", *arguments, cwd=tmp_path), 2, *words)
