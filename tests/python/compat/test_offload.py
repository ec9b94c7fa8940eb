"""OffloadAdamW under libraries that are unmodified, beside torch's AdamW."""

from __future__ import annotations

import pytest
import sluiceway as sw
from accelerate import Accelerator
from agreement import STEPS, TOLERANCE, batch_of, disagreement
from small_llama import small_llama
from test_trainer import CASES, run
from test_trainer_resume import fresh_accelerate
from twins import LR

MATRICES = 14  # Of both layers.
__all__ = ["fresh_accelerate"]  # A fixture that pytest finds here.


@pytest.fixture(params=["host", "disk"])
def offload(request, tmp_path):
    where = {"tier": "disk", "path": tmp_path / "store"} if request.param == "disk" else {}
    return lambda model, **given: sw.OffloadAdamW(model, **{"lr": LR, **where, **given})


@pytest.mark.parametrize("case", ["accumulate-clip", "reentrant", "evaluated-and-saved"])
def test_trainer(tmp_path, offload, case):
    logs = []

    def drive(model, optimizer):
        logs.append(run(tmp_path / str(len(logs)), model, optimizer, **CASES[case]))

    assert disagreement(small_llama, drive, offload) <= TOLERANCE
    for mine, other in zip(*logs, strict=True):
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def test_trainer_with_cores_that_keep_all(tmp_path):
    def ours(model, **given):
        # P is square: P S Q^T is the gradient, but for rounding.
        codec = {"codec": "block_random", "target": "proj", "ratio": 1.0, "wire": "fp32"}
        opt = sw.OffloadAdamW(model, lr=LR, chunk=16 << 10, **codec, **given)
        assert sum(one["core_rows"] > 0 for one in opt.describe()) == MATRICES
        return opt

    def drive(model, optimizer):
        run(tmp_path / type(optimizer).__name__, model, optimizer, **CASES["accumulate-clip"])

    assert disagreement(small_llama, drive, ours) <= TOLERANCE


def test_accelerate(offload):
    def drive(model, optimizer):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        prepared, stepper = accelerator.prepare(model, optimizer)
        for index in range(2 * STEPS):
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch_of(index)).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.4)
                stepper.step()
                stepper.zero_grad()

    assert disagreement(small_llama, drive, offload) <= TOLERANCE
