"""Trainer and Accelerate on the default codec, with real weights: stopped, resumed, compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import sluiceway as sw
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from conftest import REPOSITORY
from small_models import same_bits
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

MODEL = REPOSITORY / "experiments" / "quickstart" / "model"
STEPS, SAVED = 6, 3


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps one precision for a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Lines(Dataset):
    """Lines of this file, in bytes: the tokens of the quickstart model."""

    def __init__(self):
        text = Path(__file__).read_bytes()
        self.rows = [torch.tensor(list(text[k : k + 48])) for k in range(0, 48 * 32, 48)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index].clone()}


def quickstart():
    """The quickstart model; its dropout draws from torch's generator, which a save has to hold."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attention_dropout=0.1)


def default(model, **arguments):
    opt = sw.SubspaceAdamW(model, lr=1e-3, tokens_per_step=2**20, total_steps=500, **arguments)
    assert {(w["codec"], w["residual"]) for w in opt.describe()} == {
        ("svd", "factored"),
        ("none", "factored"),
    }
    return opt


def cosine(opt):
    return torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=STEPS)


# ---- Trainer ----


def trainer_run(folder, accumulate="auto", resume=None, **changes):
    """Train with Trainer; return model and logged losses by step."""
    model = quickstart()
    options = {
        "output_dir": str(folder), "max_steps": STEPS, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "logging_steps": 1,
        "lr_scheduler_type": "cosine", "save_strategy": "steps", "save_steps": SAVED,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "seed": 0, **changes,
    }  # fmt: skip
    with default(model, accumulate=accumulate) as opt:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**options),
            train_dataset=Lines(),
            optimizers=(opt, None),  # It makes its own scheduler.
        )
        trainer.train(resume_from_checkpoint=resume)
    logged = trainer.state.log_history
    return model, {entry["step"]: entry["loss"] for entry in logged if "loss" in entry}


@pytest.mark.parametrize(
    ("accumulate", "changes"),
    [("auto", {}), (2, {"bf16": True, "gradient_checkpointing": True})],
    ids=["fp32", "promise-bf16-checkpointing"],
)
def test_trainer_resumes_from_its_checkpoint_bit_for_bit(tmp_path, accumulate, changes):
    whole, losses = trainer_run(tmp_path, accumulate, **changes)
    saved = tmp_path / f"checkpoint-{SAVED}"
    resumed, again = trainer_run(tmp_path, accumulate, str(saved), **changes)
    assert list(losses) == list(range(1, STEPS + 1))
    assert again == losses  # Those before the save are in its log.
    assert same_bits(resumed, whole)
    assert losses[STEPS] < losses[1]
    assert not same_bits(resumed, AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32))


# ---- Accelerate ----


def plain_run(precision, accumulate):
    """The loop that Accelerate has to be equal to; model and losses."""
    model, losses = quickstart(), []
    with default(model, accumulate=accumulate) as opt:
        scheduler = cosine(opt)
        for index, batch in enumerate(DataLoader(Lines(), batch_size=2)):
            if index == 2 * STEPS:
                break
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**batch).loss
            losses.append(loss.item())
            (loss / 2).backward()
            if index % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()
                scheduler.step()
                opt.zero_grad()
    return model, losses


def accelerate_run(precision, accumulate, save=None, load=None):
    """Train, save on the way or go on from a save; model and losses."""
    model, losses = quickstart(), []
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    with default(model, accumulate=accumulate) as opt:
        prepared, stepper, loader, scheduler = accelerator.prepare(
            model, opt, DataLoader(Lines(), batch_size=2), cosine(opt)
        )
        first = 0
        if load is not None:
            accelerator.load_state(load)
            first = 2 * SAVED
        rest = accelerator.skip_first_batches(loader, first)
        for index, batch in enumerate(rest, start=first):
            if index == 2 * STEPS:
                break
            with accelerator.accumulate(prepared):
                loss = prepared(**batch).loss
                losses.append(loss.item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                stepper.step()
                scheduler.step()
                stepper.zero_grad()
            if save is not None and index + 1 == 2 * SAVED:
                accelerator.save_state(save)
        accelerator.free_memory()
    return model, losses


@pytest.fixture(scope="module", params=[("no", "auto"), ("bf16", 2)], ids=["fp32", "promise-bf16"])
def accelerated(request, tmp_path_factory):
    """A run through Accelerate that saved on its way: arguments, model, losses and the save."""
    # This comes before fresh_accelerate; another module's test may have left a precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    save = tmp_path_factory.mktemp("accelerated") / "save"
    return request.param, *accelerate_run(*request.param, save=save), save


def test_accelerate_is_equal_to_a_plain_loop(accelerated):
    arguments, ours, losses, _ = accelerated
    plain, expected = plain_run(*arguments)
    assert len(losses) == 2 * STEPS
    assert losses == expected
    assert same_bits(ours, plain)


def test_accelerate_goes_on_from_save_state_bit_for_bit(accelerated):
    arguments, whole, losses, save = accelerated
    resumed, rest = accelerate_run(*arguments, load=save)
    assert rest == losses[2 * SAVED :]
    assert same_bits(resumed, whole)
