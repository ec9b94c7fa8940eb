"""TRL's trainers train with our optimizers as they do with torch's AdamW."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import datasets
import pytest
import sluiceway as sw
import torch
from agreement import check_row
from conftest import REPOSITORY
from small_models import same_bits, update_error
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}</>{% endgeneration %}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ROW = "TRL: `SFTTrainer`, `DPOTrainer` (also with `OffloadAdamW`)"
DOORS = {
    "offload": {"kind": "offload", "tier": "host", "gradients": "fp32", "accumulate": 2},
    "subspace": {"codec": "identity", "wire": "fp32", "embeddings": "identity"},
}


@pytest.fixture
def parts(small_model, tmp_path):
    """Returns a function that loads the model, and the options and tokenizer of a trainer."""
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    tokenizer.chat_template, tokenizer.pad_token = TEMPLATE, tokenizer.eos_token
    options = {
        "output_dir": str(tmp_path / "out"), "max_steps": 3, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "max_grad_norm": 0.4,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "seed": 0, "bf16": False, "optim": "adamw_torch",
        "gradient_checkpointing": False, "weight_decay": 0.1,
    }  # fmt: skip
    return lambda: AutoModelForCausalLM.from_pretrained(small_model), options, tokenizer


def turns(number):
    return [{"role": "user", "content": f"{number} + 1?"}]


def answers(number):
    return [{"role": "assistant", "content": str(number)}]


def sft(model, options, tokenizer, door):
    data = [{"messages": turns(k) + answers(k + 1)} for k in range(24)]
    args = SFTConfig(**options, assistant_only_loss=True, max_length=64)
    return SFTTrainer(model, args, train_dataset=datasets.Dataset.from_list(data),
                      processing_class=tokenizer, optimizer_cls_and_kwargs=door)  # fmt: skip


def dpo(model, options, tokenizer, door):
    data = [
        {"prompt": turns(k), "chosen": answers(k + 1), "rejected": answers(k)} for k in range(24)
    ]
    trainer = DPOTrainer(
        model,
        args=DPOConfig(**options, max_length=64),
        train_dataset=datasets.Dataset.from_list(data),
        processing_class=tokenizer,
    )
    trainer.optimizer_cls_and_kwargs = door  # Trainer's argument, which this constructor lacks.
    return trainer


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("make", [sft, dpo])
def test_trainer_of_trl_trains_as_with_torchs_adamw(record_property, parts, make, kind):
    load, options, tokenizer = parts
    models, logs = [], []
    for door in (None, DOORS[kind]):
        model = load()
        torch.manual_seed(0)
        trainer = make(model, options, tokenizer, door and sw.for_trainer(model, **door))
        trainer.train()
        if door is not None:
            trainer.optimizer.optimizer.close()
        models.append(model)
        logs.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
    assert len(logs[0]) == 3
    assert logs[1] == pytest.approx(logs[0], abs=1e-4)
    check_row(record_property, ROW, update_error(load(), models[1], models[0]))


@pytest.mark.parametrize("make", [sft, dpo])
def test_trainer_of_trl_trains_by_forwards_alone(parts, make):
    load, options, tokenizer = parts
    model = load()
    door = sw.for_trainer(model, kind="zo", lr=1e-3, eps=1e-2)
    trainer = make(model, {**options, "max_steps": 6}, tokenizer, door)
    trainer.train()
    trainer.optimizer.optimizer.close()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 6
    assert all(0 < loss < 10 for loss in losses)
    assert all(p.grad is None for p in model.parameters())
    assert not same_bits(model, load())


def test_example_of_the_readme_trains_and_goes_on_from_its_last_step(small_model, tmp_path):
    text = (REPOSITORY / "README.md").read_text()
    (example,) = [
        part
        for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "SFTTrainer(" in part
    ]
    model = tmp_path / "model"
    shutil.copytree(small_model, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    lines = [json.dumps({"messages": turns(k) + answers(k + 1)}) for k in range(16)]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    for name, here in (
        ("Qwen/Qwen3-1.7B", str(model)),
        ("chats.jsonl", str(tmp_path / "chats.jsonl")),
        ('"out"', f'"{tmp_path / "out"}", use_cpu=True, bf16=False, save_strategy="no"'),
        ("/mnt/nvme/run1", str(tmp_path / "states")),
    ):
        assert name in example
        example = example.replace(name, here)
    for words in (None, "goes on from step 6"):
        done = subprocess.run(
            [sys.executable, "-c", example], capture_output=True, text=True, check=False,
            env={**os.environ, "HF_HOME": str(tmp_path / "hub")}, timeout=250,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("goes on" in done.stderr) == bool(words)
        assert words is None or words in done.stderr
