"""Accelerate, unmodified, beside torch's AdamW."""

from __future__ import annotations

import warnings

import pytest
import sluiceway as sw
import torch
from accelerate import Accelerator
from agreement import STEPS, batch_of, check_row, disagreement
from small_llama import small_llama
from small_models import same_bits
from test_trainer_resume import fresh_accelerate
from twins import LR

__all__ = ["fresh_accelerate"]  # A fixture that pytest finds here.


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate_accumulates_clips_and_steps(record_property, accumulate):
    def drive(model, optimizer):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        prepared, stepper = accelerator.prepare(model, optimizer)
        for index in range(STEPS * accumulate):
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch_of(index)).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.4)
                stepper.step()
                stepper.zero_grad()

    check_row(
        record_property, "Accelerate: accumulation, clipping", disagreement(small_llama, drive)
    )


def test_a_promise_is_kept_without_a_warning():
    def trained(accumulate):
        model = small_llama()
        with sw.SubspaceAdamW(model, lr=LR, accumulate=accumulate) as opt:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
            prepared, stepper, scheduler = accelerator.prepare(model, opt, scheduler)
            for index in range(6):
                with accelerator.accumulate(prepared):
                    accelerator.backward(prepared(**batch_of(index)).loss)
                    stepper.step()
                    scheduler.step()
                    stepper.zero_grad()
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "SubspaceAdamW")
        promised = trained(2)
    assert same_bits(promised, trained("auto"))
