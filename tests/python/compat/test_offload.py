"""OffloadAdamW under libraries that are unmodified, beside torch's AdamW."""

from __future__ import annotations

import pytest
import sluiceway as sw
from accelerate import Accelerator
from agreement import STEPS, TOLERANCE, batch_of, disagreement
from small_llama import small_llama
from small_models import same_bits
from test_trainer import CASES, Tokens, arguments, run
from test_trainer_resume import fresh_accelerate
from transformers import Trainer, TrainerCallback
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


@pytest.mark.parametrize("case", ["accumulate-clip", "reentrant", "evaluated-and-saved"])
def test_trainer_ends_in_the_bits_of_resident_weights_if_they_are_streamed(tmp_path, case):
    models, logs = [], []
    for weights in ("resident", "streamed"):
        models.append(small_llama())
        place = {"tier": "disk", "path": tmp_path / f"{weights}-store", "chunk": 16 << 10}
        with sw.OffloadAdamW(models[-1], lr=LR, weights=weights, **place) as opt:
            log = run(tmp_path / weights, models[-1], opt, **CASES[case])
        logs.append([(entry["loss"], entry["grad_norm"]) for entry in log])
    assert logs[0] == logs[1]
    assert same_bits(*models)


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


class Crash(TrainerCallback):
    """Ends a run after its third step, which no checkpoint has."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            raise RuntimeError("crash")


def trained(folder, offload, steps, resume=None, callbacks=None):
    """Train with Trainer, which saves every second step and at its end; return the model."""
    model = small_llama()
    saves = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    with offload(model) as opt:
        trainer = Trainer(
            model=model,
            args=arguments(folder, max_steps=steps, **saves),
            train_dataset=Tokens(),
            optimizers=(opt, None),
            callbacks=callbacks,
        )
        trainer.train(resume_from_checkpoint=resume)
    return model


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("crashes", [False, True], ids=["at the save", "past the save"])
def test_trainer_resumes_from_its_checkpoint_bit_for_bit(tmp_path, tier, crashes):
    def in_folder(name):
        where = {"path": tmp_path / f"{name}-store"} if tier == "disk" else {}
        return lambda model: sw.OffloadAdamW(model, lr=LR, tier=tier, **where)

    whole = trained(tmp_path / "whole", in_folder("whole"), 5)
    if crashes:
        with pytest.raises(RuntimeError, match="crash"):
            trained(tmp_path / "cut", in_folder("cut"), 5, callbacks=[Crash()])
    else:
        trained(tmp_path / "cut", in_folder("cut"), 2)
    saved = tmp_path / "cut" / "checkpoint-2"
    resumed = trained(tmp_path / "cut", in_folder("cut"), 5, str(saved))
    assert same_bits(resumed, whole)


def test_trainer_does_not_train_beside_a_store_that_it_did_not_take_up(tmp_path):
    def stored(model):
        return sw.OffloadAdamW(model, lr=LR, tier="disk", path=tmp_path / "store")

    trained(tmp_path / "run", stored, 2)
    with pytest.raises(sw.InvalidArgument, match="holds step 2 of this model"):
        trained(tmp_path / "run", stored, 4)
