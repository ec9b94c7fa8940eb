"""experiments/laptop, and plans for a card that this machine does not have."""

from __future__ import annotations

import json
import re
import runpy
import sys

import pytest
from conftest import REPOSITORY

LAPTOP = REPOSITORY / "experiments" / "laptop"
CONFIG = REPOSITORY / "configs" / "laptop_1b_4gb.yaml"


@pytest.fixture
def run_laptop(forked_by_scripts, monkeypatch, capsys):
    """run.py, in this process; gives what it printed."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
        runpy.run_module("experiments.laptop.run", run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("budget", "within"), [(4, 4.0), (7, 7.0)])
def test_it_fits_and_says_before_it_starts_what_it_needs(run_laptop, budget, within):
    said = run_laptop("--plan", "--budget", budget)
    needs = float(re.search(rf"device: ([\d.]+) GiB of {budget} GiB on cuda:0", said)[1])
    assert 2.5 < needs < within - 0.3  # The driver's context comes on top of it.
    for row in ("host: ", "disk: ", "time: "):
        assert f"\n{row}" in said
    assert f"{needs} GiB)" in (LAPTOP / "README.md").read_text()


def test_what_is_above_the_budget_is_refused_before_anything_is_written(run_laptop, tmp_path):
    folder = tmp_path / "laptop"
    large = "--set", "engine.codec=block_random", "--set", "engine.ratio=0.5"
    with pytest.raises(SystemExit, match=r"run.py: budget\.device: the run needs"):
        run_laptop("--folder", folder, *large)
    assert not folder.exists()


def test_it_trains_a_small_shape_on_the_host(run_laptop, small_model, tmp_path):
    sets = ["--set", "data.sequence_length=32", "--set", "data.eval=[]"]
    said = run_laptop("--device", "host", "--shape", small_model, "--steps", 2,
                      "--folder", tmp_path, *sets)  # fmt: skip
    assert "\nfound: device " in said
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("done", 2)
    used = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    foretold = re.search(r"disk: +up to ([\d.]+) MiB", said)[1]
    assert used < float(foretold) * 2**20 < 4 * used


def test_a_card_of_another_machine_is_planned_for_and_said_not_to_be_seen(sluiceway):
    done = sluiceway("plan", CONFIG, "--json", "--set", "device.name=cuda:7", cwd=REPOSITORY)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert plan["device"] == {"name": "cuda:7", "here": False}
    tiers = plan["peak_bytes"]
    assert tiers["process"] < tiers["device"]  # Its memory is none of the process.
    text = sluiceway("plan", CONFIG, "--set", "device.name=cuda:7", cwd=REPOSITORY)
    assert "cuda:7 was not seen on this machine" in text.out
    host = sluiceway("plan", CONFIG, "--json", "--set", "device.name=host", cwd=REPOSITORY)
    tiers = json.loads(host.out)["peak_bytes"]
    assert tiers["process"] > tiers["device"]
