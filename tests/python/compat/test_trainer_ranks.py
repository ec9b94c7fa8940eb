"""transformers' Trainer in two processes, as torchrun starts them, equals it in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import REPOSITORY
from small_llama import small_llama
from small_models import distance, same_bits
from trainer_rank import DOORS, train

SCRIPT = REPOSITORY / "tests/python/trainer_rank.py"
# Losses of zo are divided by 2 eps, so a rounding of one grows five hundred times.
TOLERANCE = {"identity": 1e-6, "default": 1e-6, "zo": 1e-4}


@pytest.mark.parametrize("case", DOORS)
def test_two_processes_equal_one_with_the_same_batches(case, tmp_path):
    together, alone = tmp_path / "two", tmp_path / "one"
    for folder in (together, alone):
        folder.mkdir()
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, SCRIPT, together, "2", case],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    losses = train(alone, 4, case)
    assert json.loads((together / "losses.json").read_text()) == pytest.approx(losses, rel=1e-5)
    models = []
    for path in (together / "weights.0.pt", together / "weights.1.pt", alone / "weights.0.pt"):
        models.append(small_llama())
        models[-1].load_state_dict(torch.load(path))
    assert same_bits(models[0], models[1])
    assert distance(models[0], models[2]) < TOLERANCE[case]
    assert distance(models[0], small_llama()) > 10 * TOLERANCE[case]
    assert (together / "checkpoint-5" / "optimizer.pt").exists()
