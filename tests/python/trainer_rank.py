"""One of several processes that transformers' Trainer trains in; see test_trainer_ranks.py.

Its arguments are a folder, the rows of a batch that each process takes, and a case.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sluiceway as sw
import torch
from small_llama import small_llama
from transformers import Trainer, TrainingArguments

DOORS = {
    "identity": {"codec": "identity", "wire": "fp32"},
    "default": {},
    "zo": {"kind": "zo", "lr": 1e-3},
}


class Tokens(torch.utils.data.Dataset):
    """Tokens that are a function of their row's number."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (24,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": ids, "labels": ids}


def train(folder: Path, rows: int, case: str) -> list[float]:
    """Train five steps of three micro-batches with clipping, and keep the weights; the losses."""
    model = small_llama()
    args = TrainingArguments(
        output_dir=str(folder), max_steps=5, per_device_train_batch_size=rows,
        gradient_accumulation_steps=3, max_grad_norm=0.4, learning_rate=1e-3, logging_steps=1,
        save_strategy="steps", save_steps=5, report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
    )  # fmt: skip
    door = sw.for_trainer(model, **DOORS[case])
    trainer = Trainer(model, args, train_dataset=Tokens(), optimizer_cls_and_kwargs=door)
    trainer.train()
    torch.save(model.state_dict(), folder / f"weights.{args.process_index}.pt")
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    place, of_each, name = sys.argv[1:]
    losses = train(Path(place), int(of_each), name)
    (Path(place) / "losses.json").write_text(json.dumps(losses))
