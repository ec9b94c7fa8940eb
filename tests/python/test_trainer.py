"""transformers' Trainer and Accelerate, unmodified, with the optimizer handed to them."""

from __future__ import annotations

import copy

import pytest
import sluiceway as sw
import torch
from small_models import distance, same_bits
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from twins import train

LR = 1e-3


def tiny_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=256,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            attention_dropout=0.0,
        )
    )


class Tokens(Dataset):
    """Sequences that are a function of their index alone."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (24,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.clone()}


def arguments(folder, **changes):
    return TrainingArguments(
        **{
            "output_dir": str(folder),
            "max_steps": 8,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 3,
            "max_grad_norm": 0.4,
            "learning_rate": LR,
            "lr_scheduler_type": "cosine",
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 0,
            **changes,
        }
    )


def scheduler(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)


def test_trainer_with_its_own_clipping_and_accumulation_matches_native(tmp_path):
    ours, theirs = tiny_llama(), tiny_llama()
    theirs.model.embed_tokens.weight.requires_grad_(False)
    logs = []
    with sw.SubspaceAdamW(ours, lr=LR, codec="identity", wire="fp32") as opt:
        native = torch.optim.AdamW(
            [p for p in theirs.parameters() if p.requires_grad], lr=LR, foreach=False
        )
        for model, optimizer in ((ours, opt), (theirs, native)):
            trainer = Trainer(
                model=model,
                args=arguments(tmp_path),
                train_dataset=Tokens(),
                optimizers=(optimizer, scheduler(optimizer)),
            )
            trainer.train()
            logs.append([entry for entry in trainer.state.log_history if "grad_norm" in entry])
    assert distance(ours, theirs) <= 1e-4
    assert len(logs[0]) == 8
    for mine, other in zip(*logs, strict=True):
        assert other["grad_norm"] > 0.4  # Clipping is active, and both report the true norm.
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
        assert mine["loss"] == pytest.approx(other["loss"], abs=2e-4)


def test_accelerate_accumulates_clips_and_steps(tmp_path):
    from accelerate import Accelerator

    ours, theirs = tiny_llama(), tiny_llama()
    theirs.model.embed_tokens.weight.requires_grad_(False)
    data = Tokens()
    with sw.SubspaceAdamW(ours, lr=LR, codec="identity", wire="fp32") as opt:
        native = torch.optim.AdamW(
            [p for p in theirs.parameters() if p.requires_grad], lr=LR, foreach=False
        )
        for model, optimizer in ((ours, opt), (theirs, native)):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            prepared, stepper = accelerator.prepare(model, optimizer)
            for index in range(8):
                with accelerator.accumulate(prepared):
                    batch = {k: v[None] for k, v in data[index].items()}
                    accelerator.backward(prepared(**batch).loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(prepared.parameters(), 0.4)
                    stepper.step()
                    stepper.zero_grad()
    assert distance(ours, theirs) <= 1e-5


def test_a_copied_model_trains_without_the_optimizer_of_the_original():
    def loss(model, index):
        tokens = Tokens()[index]["input_ids"][None]
        return model(input_ids=tokens, labels=tokens).loss

    alone, copied, plain = tiny_llama(), tiny_llama(), tiny_llama()
    with sw.SubspaceAdamW(alone, lr=LR) as opt:
        train(alone, opt, 4, loss=loss)
    with sw.SubspaceAdamW(copied, lr=LR, accumulate=1) as opt:
        train(copied, opt, 2, loss=loss)
        opt.synchronize()
        twin = copy.deepcopy(copied)
        plain.load_state_dict(copied.state_dict())
        plain.model.embed_tokens.weight.requires_grad_(False)
        loss(copied, 2).backward()
        for index in (5, 6):  # In the middle of a step of the original.
            loss(twin, index).backward()
            loss(plain, index).backward()
        opt.step()
        opt.zero_grad()
        train(copied, opt, 1, first=3, loss=loss)
    assert same_bits(copied, alone)
    for (name, p), (_, expected) in zip(
        twin.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert (p.grad is None) == (expected.grad is None), name
        assert p.grad is None or torch.equal(p.grad, expected.grad), name
    assert twin.model.layers[0].mlp.up_proj.weight.grad is not None
    assert twin.state_dict().keys() == plain.state_dict().keys()  # Of an optimizer that is closed.
