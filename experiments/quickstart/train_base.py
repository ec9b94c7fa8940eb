"""Train a base model: a byte-level Llama on Python's own source.

    python -m experiments.quickstart.train_base --minutes 43 --out runs/base --seed 1
    python -m experiments.quickstart.store_model --run runs/base

The learning rate warms up and then falls to zero over the budget, in minutes of training or in
steps (`--steps`, which gives the same weights on every run with one thread). The best weights so
far on the held-out files are always in OUT/best.pt, and the last state in OUT/state.pt
(`--resume` continues from it).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.quickstart.base_optimizer import BatchedMuon
from experiments.quickstart.byte_tokenizer import END_OF_TEXT_ID, VOCABULARY_SIZE
from experiments.quickstart.stdlib_corpus import load_corpus

CONTEXT = 512
SHORT = 256  # Length of the windows until --long-from; short windows are cheaper.


def shape_of(layers: int, inner: int) -> LlamaConfig:
    """Return a base model's config: the quickstart has 4 layers of 640, 3.0 M block weights."""
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=256,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=END_OF_TEXT_ID,
        attention_dropout=0.0,
    )


@dataclass
class Progress:
    """Progress of the run, saved with the weights so that a stopped run can continue."""

    step: int = 0
    seconds: float = 0.0  # Training time, without evaluation.
    tokens: int = 0
    smoothed: float = math.nan
    best: float = math.inf
    evals: list = field(default_factory=list)  # [step, seconds, smoothed, held-out loss]

    def add(self, loss: float, tokens: int, seconds: float) -> None:
        """Count one step."""
        self.step += 1
        self.tokens += tokens
        self.seconds += seconds
        self.smoothed = loss if math.isnan(self.smoothed) else 0.97 * self.smoothed + 0.03 * loss


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean next-byte cross entropy in nats of sequences [count, length + 1]."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(
    model: torch.nn.Module, stream: torch.Tensor, length: int, limit: int | None = None
) -> float:
    """Mean loss over non-overlapping windows, or over about `limit` of them, evenly spread."""
    count = (len(stream) - 1) // length
    rows = range(0, count, 1 if limit is None else max(1, count // limit))
    windows = torch.stack([stream[r * length : (r + 1) * length + 1] for r in rows])
    model.eval()
    total = sum(loss_of(model, batch).item() * len(batch) for batch in windows.split(16))
    model.train()
    return total / len(windows)


def optimizers_for(model: torch.nn.Module, args: argparse.Namespace) -> list:
    """Return Muon for the matrices inside the layers, and AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        BatchedMuon(matrices, lr=args.muon_lr, weight_decay=0.05),
        torch.optim.AdamW(rest, lr=args.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_factor(fraction: float, warmup: float = 0.01) -> float:
    """Linear warmup, then linear to zero at the end of the budget."""
    return min(1.0, fraction / warmup, (1.0 - fraction) / (1.0 - warmup))


def window_batch(stream: torch.Tensor, step: int, length: int, args) -> torch.Tensor:
    """Draw random windows of the training text, the same for the same step and seed."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    count = args.batch_tokens // length
    starts = torch.randint(len(stream) - length - 1, (count,), generator=generator)
    return torch.stack([stream[s : s + length + 1] for s in starts.tolist()])


def one_step(model, optimizers: list, batch: torch.Tensor) -> float:
    """Run forward, backward, clip and update; return the loss."""
    loss = loss_of(model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def save(model, optimizers: list, progress: Progress, path: Path) -> None:
    """Write the file that `--resume` reads; the rename makes it whole or absent."""
    partial = path.with_suffix(".tmp")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"model": model.state_dict(), "optimizers": states, "progress": vars(progress)},
               partial)  # fmt: skip
    partial.rename(path)


def resume(model, optimizers: list, path: Path) -> Progress:
    """Load a file of `save`."""
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return Progress(**saved["progress"])


def report(model, optimizers: list, held_out: torch.Tensor, progress: Progress, out: Path) -> None:
    """Evaluate on a fixed part of the held-out files, print a line, save the best weights."""
    value = held_out_loss(model, held_out, SHORT, limit=64)
    progress.evals.append([progress.step, progress.seconds, progress.smoothed, value])
    if value < progress.best:
        progress.best = value
        save(model, optimizers, progress, out / "best.pt")
    save(model, optimizers, progress, out / "state.pt")
    print(
        f"step {progress.step}  {progress.seconds:.0f} s  {progress.tokens:,} tokens  "
        f"train {progress.smoothed:.3f}  held out {value:.3f}",
        flush=True,
    )


def train(args: argparse.Namespace) -> None:
    """Run until the budget of minutes or steps is used up."""
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus()
    stream, held_out = torch.from_numpy(corpus.train), torch.from_numpy(corpus.held_out)
    print(f"{len(stream):,} tokens to train on, {len(held_out):,} held out", flush=True)
    model = LlamaForCausalLM(shape_of(args.layers, args.inner))
    optimizers = optimizers_for(model, args)
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    progress = Progress()
    if args.resume:
        progress = resume(model, optimizers, args.out / "state.pt")
    next_report = progress.seconds + args.eval_seconds
    while True:
        began = time.monotonic()
        done = progress.step / args.steps if args.steps else progress.seconds / 60 / args.minutes
        if done >= 1:
            break
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * rate_factor(done)
        # The model learns positions beyond SHORT in the last part.
        length = CONTEXT if done > args.long_from else SHORT
        batch = window_batch(stream, progress.step, length, args)
        loss = one_step(model, optimizers, batch)
        progress.add(loss, batch.shape[0] * length, time.monotonic() - began)
        if progress.seconds >= next_report:
            next_report = progress.seconds + args.eval_seconds
            report(model, optimizers, held_out, progress, args.out)
    report(model, optimizers, held_out, progress, args.out)
    arguments = {name: str(value) for name, value in vars(args).items()}
    final = {"arguments": arguments, "python": platform.python_version(),
             "torch": torch.__version__, **vars(progress)}  # fmt: skip
    (args.out / "final.json").write_text(json.dumps(final, indent=1) + "\n")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/base"))
    parser.add_argument("--minutes", type=float, default=43.0)
    parser.add_argument("--steps", type=int, default=0, help="replaces --minutes")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--inner", type=int, default=640, help="width inside a layer's MLP")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--long-from", type=float, default=0.75)
    parser.add_argument("--eval-seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_args())
