"""Scripts of experiments/ start `sluiceway` correctly; a stand-in for Python checks it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import REPOSITORY

from experiments.quickstart.run_folder import planned, train

PYTHON = """#!/bin/sh
beside=$(dirname "$0")
pwd -P >"$beside/cwd"
printf '%s\\n' "$@" >"$beside/asked"
echo '{"seconds_per_step": 2}'
echo refused >&2
exit $(cat "$beside/code")
"""
OVERRIDES = {"train.steps": 3, "device.link": {"d2h_gbps": 0.5}, "budget.host": None}
SETTINGS = ["--set", "train.steps=3", "--set", "device.link={d2h_gbps: 0.5}",
            "--set", "budget.host=null"]  # fmt: skip


@pytest.fixture
def python(tmp_path):
    """Ends with the code that is written beside it."""
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(0o755)
    (tmp_path / "code").write_text("0")
    return path


def test_train_replaces_a_run_and_a_failure_is_an_error(python, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "logs" / "log.txt"
    folder.mkdir()
    (folder / "config.yaml").touch()
    assert train("c.yaml", folder, OVERRIDES, log, python=str(python)).path == folder
    assert not folder.exists()
    asked = ["-m", "sluiceway", "train", "c.yaml", "--out", str(folder), *SETTINGS]
    assert (tmp_path / "asked").read_text().splitlines() == asked
    assert (tmp_path / "cwd").read_text().strip() == str(REPOSITORY)
    assert "refused" in log.read_text()
    (tmp_path / "code").write_text("1")
    for where in (None, log):
        with pytest.raises(subprocess.CalledProcessError):
            train("c.yaml", folder, OVERRIDES, where, python=str(python))


def test_a_plan_that_is_refused_is_a_plan_and_no_plan_ends_the_script(
    python, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "executable", str(python))
    for code in ("0", "3"):
        (tmp_path / "code").write_text(code)
        assert planned("c.yaml", OVERRIDES) == {"seconds_per_step": 2}
    asked = ["-m", "sluiceway", "plan", "c.yaml", "--json", *SETTINGS]
    assert (tmp_path / "asked").read_text().splitlines() == asked
    (tmp_path / "code").write_text("2")
    with pytest.raises(SystemExit, match="refused"):
        planned("c.yaml", OVERRIDES)
