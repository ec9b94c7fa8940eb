"""Compare the engine's ways with AdamW on pretrained weights, from 1,024 to 16,384 tokens a step.

    python -m experiments.quickstart.train_base --layers 12 --inner 704 --steps 480 --seed 1 \\
        --out build/pretrained/base                     # the base: 9.6 M weights in its blocks
    python -m experiments.regimes.quiet.pretrained      # runs that are left; resumable
    python -m experiments.regimes.quiet.pretrained --table

Each run fine-tunes the base on Perl, reads each byte once, and then measures the loss on held-out
files. One seed, which the table leaves out, chooses the rate of each way in each setting.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sluiceway.text.batches import Batches, Sequences, in_order
from transformers import LlamaForCausalLM

from experiments.fidelity.stages import Found, Results
from experiments.fidelity.tasks import LENGTH, first_sequences, load_text
from experiments.fidelity.train_one import digest_of
from experiments.harness import REPOSITORY, Row, Study, commits, run_study
from experiments.quickstart.train_base import loss_of, shape_of
from experiments.regimes.differences import paired_values
from experiments.regimes.quiet.table import ADAMW, Make, core, mean_and_error, ours
from experiments.regimes.starts import fingerprint

BASE = REPOSITORY / "build/pretrained/base/best.pt"
LAYERS, INNER = 12, 704
MICRO_BATCH = 4_096  # Most tokens in a micro-batch.
HELD_OUT = 96  # Sequences of LENGTH bytes.
PICK_SEED = 100  # Chooses rates, on the held-out part `pick`.
SEEDS = range(5)  # Measured on the part `final`.
RATES = (2.5e-4, 1e-3, 4e-3)
DECAY = 0.01


@dataclass(frozen=True)
class Run:
    """A fine-tune: tokens that a step reads, number of steps, way, rate and seed."""

    tokens: int
    steps: int
    way: str = ADAMW
    lr: float = 0.0
    seed: int = PICK_SEED

    @property
    def key(self) -> str:
        """Key of a row."""
        return digest_of(self)

    @property
    def part(self) -> str:
        """Held-out text for the run's evaluation."""
        return "pick" if self.seed == PICK_SEED else "final"

    @property
    def name(self) -> str:
        """Name for people."""
        return f"{self.tokens:,} tokens, {self.way}, lr {self.lr:g}, seed {self.seed}"

    @property
    def accumulate(self) -> int:
        """Micro-batches of a step."""
        return math.ceil(self.tokens / MICRO_BATCH)


SETTINGS = (Run(1_024, 24), Run(4_096, 8), Run(16_384, 4))


def adamw(model: torch.nn.Module, lr: float, seed: int) -> torch.optim.Optimizer:
    """Return torch's AdamW over the trained weights."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=lr, weight_decay=DECAY)


def ways(accumulate: int) -> dict[str, Make]:
    """Return the ways by name; an engine learns how many micro-batches a step has."""
    more = {"weight_decay": DECAY, "accumulate": accumulate}
    return {
        ADAMW: adamw,
        "the default": ours(codec="none", **more),
        "svd 1/2": core("svd", 0.5, **more),
        "block_random 1/2": core("block_random", 0.5, **more),
    }


# ---- Runs ----------------------------------------------------------------------------------------


def asked_for(row: Row) -> Run:
    """Return the run that a row came from."""
    return Run(**{f.name: row[f.name] for f in fields(Run)})


def chosen_rate(found: Found, setting: Run, way: str) -> float | None:
    """Return the best of RATES on `pick`; None while a run is missing."""
    return found.best_rate(replace(setting, way=way), RATES)


def picks(found: Found) -> Iterator[Run]:
    """Yield the runs that choose a rate."""
    for setting in SETTINGS:
        for way in ways(1):
            for lr in RATES:
                yield replace(setting, way=way, lr=lr)


def finals(found: Found) -> Iterator[Run]:
    """Yield the runs that the table shows, every setting of a seed before the next seed."""
    for seed in SEEDS:
        for setting in SETTINGS:
            for way in ways(1):
                if (lr := chosen_rate(found, setting, way)) is not None:
                    yield replace(setting, way=way, lr=lr, seed=seed)


def measured(run: Run) -> Row:
    """Fine-tune once; return the row."""
    text, model, began = load_text("perl"), base_model(), time.process_time()
    held_out = first_sequences(getattr(text, run.part), HELD_OUT)
    start = fingerprint(model)
    batches = Batches(text.train, run.tokens // run.accumulate // LENGTH, run.seed)
    before, losses = mean_loss(model, held_out), []
    optimizer = ways(run.accumulate)[run.way](model, run.lr, run.seed)
    with closing(optimizer) if hasattr(optimizer, "close") else nullcontext():
        for step in range(run.steps):
            for group in optimizer.param_groups:
                group["lr"] = run.lr * rate_factor(step, run.steps)
            total = 0.0
            for k in range(run.accumulate):
                loss = batch_loss(model, batches[step * run.accumulate + k]) / run.accumulate
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(round(total, 4))
        after = mean_loss(model, held_out)
    return {
        **asdict(run), "before": {run.part: before}, "after": {run.part: after},
        "losses": losses, "start_is": start, "held_out_is": held_out.fingerprint,
        "order_is": f"{text.train.fingerprint}/{run.seed}",
        "core_seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def base_model() -> LlamaForCausalLM:
    """Load the base model in f32 and freeze its embedding, which is also its head.

    Raises
    ------
    FileNotFoundError
        The base model has not been trained.
    """
    if not BASE.exists():
        raise FileNotFoundError(f"{BASE}: the base model is missing; --help shows how to train it")
    model = LlamaForCausalLM(shape_of(LAYERS, INNER))
    model.load_state_dict(torch.load(BASE, weights_only=True)["model"])
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def rate_factor(step: int, steps: int) -> float:
    """Return the factor of the rate: warmup over an eighth of the steps, then a cosine to zero."""
    warmup = max(1, steps // 8)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))


def batch_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean loss of a batch in nats a byte."""
    return loss_of(model, batch.inputs["input_ids"])


@torch.no_grad()
def mean_loss(model: torch.nn.Module, sequences: Sequences) -> float:
    """Return the mean loss of all sequences in nats a byte; they come in whole batches of 16."""
    return statistics.fmean(batch_loss(model, b).item() for b in in_order(sequences, 16))


# ---- The page ------------------------------------------------------------------------------------


HEAD = """# Pretrained weights

Written by `python -m experiments.regimes.quiet.pretrained --table` from `pretrained.jsonl`; code of
{commits}.

A byte-level Llama of {layers} layers (9.6 M weights in its blocks), trained on Python, is
fine-tuned on Perl in f32 at the rate that one seed chose. `loss` is the mean held-out loss in nats
a byte. A difference is paired by seed, with its standard error, in thousandths of a nat; negative
is better than AdamW.

| tokens a step | steps | way | rate | seeds | loss | less AdamW, thousandths |
|---|---|---|---|---|---|---|
"""


def document(found: Found) -> str:
    """Return the page: held-out losses, less AdamW's of the same seed."""
    text = HEAD.format(commits=commits(found.rows()), layers=LAYERS)
    shown = [f"| {' | '.join(cells)} |\n" for cells in lines(found)]
    return text + "".join(shown or ["\nNothing yet.\n"])


def lines(found: Found) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each line whose runs, and AdamW's, have all finished."""
    for setting in SETTINGS:
        native = seeds_of(found, setting, ADAMW)
        for way in ways(1):
            mine = seeds_of(found, setting, way)
            if (apart := paired_values(found, mine, native)) is not None:
                loss = statistics.fmean(map(found.loss, mine))
                yield (f"{setting.tokens:,}", str(setting.steps), way, f"{mine[0].lr:g}",
                       str(len(mine)), f"{loss:.4f}",
                       mean_and_error([1e3 * value for value in apart]))  # fmt: skip


def seeds_of(found: Found, setting: Run, way: str) -> list[Run]:
    """Return a line's runs; their rate is zero until one is chosen."""
    lr = chosen_rate(found, setting, way) or 0.0
    return [replace(setting, way=way, lr=lr, seed=seed) for seed in SEEDS]


STUDY = Study(
    Path(__file__).with_suffix(".jsonl"),
    partial(Results, asked_for=asked_for),
    {"pick": picks, "final": finals},
    measured,
    document,
    "PRETRAINED.md",
)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
