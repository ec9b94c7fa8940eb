"""experiments/laptop, and plans for a card that this machine does not have."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from conftest import REPOSITORY

LAPTOP = REPOSITORY / "experiments" / "laptop"
CONFIG = REPOSITORY / "configs" / "laptop_1b_4gb.yaml"


def run_laptop(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(LAPTOP / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("budget", "within"), [(4, 4.0), (7, 7.0)])
def test_it_fits_and_says_before_it_starts_what_it_needs(budget, within):
    done = run_laptop("--plan", "--budget", budget)
    assert done.returncode == 0, done.stderr
    needs = float(re.search(rf"device: ([\d.]+) GiB of {budget} GiB on cuda:0", done.stdout)[1])
    assert 2.5 < needs < within - 0.3  # The driver's context comes on top of it.
    for row in ("host: ", "disk: ", "time: "):
        assert f"\n{row}" in done.stdout
    assert f"{needs} GiB)" in (LAPTOP / "README.md").read_text()


def test_what_is_above_the_budget_is_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "laptop"
    done = run_laptop("--folder", folder, "--set", "engine.ratio=0.5")
    assert done.returncode == 1
    assert "budget.device: the run needs" in done.stderr
    assert not folder.exists()


def test_it_trains_a_small_shape_on_the_host(small_model, tmp_path):
    sets = ["--set", "data.sequence_length=32", "--set", "data.eval=[]"]
    done = run_laptop("--device", "host", "--shape", small_model, "--steps", 2,
                      "--folder", tmp_path, *sets)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\nfound: device " in done.stdout
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("done", 2)
    used = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    said = re.search(r"disk: +up to ([\d.]+) MiB", done.stdout)[1]
    assert used < float(said) * 2**20 < 4 * used


def test_a_card_of_another_machine_is_planned_for_and_said_not_to_be_seen(sluiceway):
    done = sluiceway("plan", CONFIG, "--set", "device.name=cuda:7", cwd=REPOSITORY)
    assert done.code == 0, done.err
    assert "cuda:7 was not seen on this machine" in done.out
    plan = json.loads(sluiceway("plan", CONFIG, "--json", "--set", "device.name=cuda:7",
                                cwd=REPOSITORY).out)  # fmt: skip
    assert plan["device"] == {"name": "cuda:7", "here": False}
    tiers = plan["peak_bytes"]
    assert tiers["process"] < tiers["device"]  # Its memory is none of the process.
    host = sluiceway("plan", CONFIG, "--json", "--set", "device.name=host", cwd=REPOSITORY)
    tiers = json.loads(host.out)["peak_bytes"]
    assert tiers["process"] > tiers["device"]
