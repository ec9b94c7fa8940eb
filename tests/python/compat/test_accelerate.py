"""Accelerate, unmodified, beside torch's AdamW."""

from __future__ import annotations

import pytest
from accelerate import Accelerator
from agreement import STEPS, batch_of, check_row, disagreement
from small_llama import small_llama
from test_trainer_resume import fresh_accelerate

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
