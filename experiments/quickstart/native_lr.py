"""Tune the learning rate of native AdamW on the demo's task, with plain torch.

    python -m experiments.quickstart.native_lr

Uses the model, text, steps, batch, schedule and clipping of configs/quickstart.yaml, with the
embedding frozen as in the demo, and no part of the engine. Writes native_lr.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path

import torch
from sluiceway.config.file import load_config
from sluiceway.config.schema import Config
from sluiceway.text.batches import Batches, Sequences, in_order, load_sequences
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.harness import REPOSITORY, provenance

RESULTS = Path(__file__).parent / "native_lr.json"


@torch.no_grad()
def mean_loss(model: torch.nn.Module, held_out: Sequences) -> float:
    """Return the mean loss of every predicted held-out byte."""
    total, count = 0.0, 0
    for batch in in_order(held_out, 16):
        total += model(**batch.inputs, use_cache=False).loss.item() * batch.learned
        count += batch.learned
    return total / count


def rate_factor(step: int, steps: int, warmup: int) -> float:
    """Linear warmup, then a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def fine_tune(config: Config, rate: float, train: Sequences, held_out: Sequences) -> dict:
    """Make one run; return the losses before and after."""
    settings = config.train
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    model.get_input_embeddings().weight.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=settings.weight_decay)
    before = mean_loss(model, held_out)
    batches = Batches(train, settings.micro_batch, settings.seed)
    for step in range(settings.steps):
        factor = rate_factor(step, settings.steps, settings.warmup_steps)
        optimizer.param_groups[0]["lr"] = rate * factor
        model(**batches[step].inputs, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, settings.max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return {"lr": rate, "before": before, "after": mean_loss(model, held_out)}


def main() -> None:
    """Try each rate, and print the best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3])
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.chdir(REPOSITORY)
    config = load_config(args.config)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    train, held_out, counts = load_sequences(config, tokenizer, len(tokenizer))
    print(json.dumps(counts), flush=True)
    runs = []
    for rate in args.rates:
        runs.append(fine_tune(config, rate, train, held_out))
        print(json.dumps(runs[-1]), flush=True)
    best = min(runs, key=lambda run: run["after"])
    print(f"best lr {best['lr']:g}: {best['before']:.4f} to {best['after']:.4f} nats a byte")
    result = {
        **provenance(),
        "counts": counts,
        "train": config.train.model_dump(mode="json"),
        "runs": runs,
        "best": best,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
