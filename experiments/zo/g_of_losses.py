"""Size of g on the quickstart model, and the error from rounding the loss.

    python -m experiments.zo.g_of_losses            # into g_of_losses.json
    python -m experiments.zo.g_of_losses --table

The weights never move. In each forward the same hidden states give three losses: from logits in
f64, which is the reference; from `chunked_cross_entropy`; and the model's own.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import sluiceway
import torch
from sluiceway.model.chunked_loss.cross_entropy import IGNORED, chunked_cross_entropy
from sluiceway.text.batches import Batches, load_sequences
from torch.nn import functional

from experiments.harness import REPOSITORY, write_rows
from experiments.same_bits.checkouts import machine

RESULTS = Path(__file__).with_name("g_of_losses.json")
CONFIG = REPOSITORY / "configs/quickstart.yaml"


class Losses:
    """Closure of one batch, which keeps the three losses of each forward pass."""

    def __init__(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        self._model, self._inputs = model, inputs
        self.seen: list[dict[str, float]] = []  # "+", then "-".

    def __call__(self) -> torch.Tensor:
        """Return the reference loss."""
        head, given = self._model.get_output_embeddings(), []
        handle = head.register_forward_pre_hook(lambda _, args: given.append(args[0]))
        try:
            own = self._model(**self._inputs).loss
        finally:
            handle.remove()
        hidden = given[-1].flatten(0, -2)
        labels = functional.pad(self._inputs["labels"], (0, 1), value=IGNORED)[:, 1:].flatten()
        exact = functional.cross_entropy(hidden.double() @ head.weight.double().T, labels)
        chunked = chunked_cross_entropy(hidden, head.weight, labels)
        self.seen.append({"exact": exact.item(), "chunked": chunked.item(), "own": own.item()})
        return exact


def measure(dtype: torch.dtype, steps: int, micro_batch: int) -> dict[str, Any]:
    """Measure the deviation of g over steps and, for two losses, the RMS of what they add to it."""
    from sluiceway.config.file import load_config
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = load_config(CONFIG, [])
    folder = REPOSITORY / config.model.path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    train, _, _ = load_sequences(config, tokenizer, model.config.vocab_size)
    batches = Batches(train, micro_batch, seed=0)
    opt = sluiceway.ZoSgd(model, lr=0.0)
    g: dict[str, list[float]] = {"exact": [], "chunked": [], "own": []}
    for number in range(steps):
        closure = Losses(model, batches[number].inputs)
        opt.step(closure)
        plus, minus = closure.seen
        for name, found in g.items():
            found.append((plus[name] - minus[name]) / (2 * opt.options.eps))
    exact = torch.tensor(g["exact"], dtype=torch.float64)
    off = {
        f"error_{name}": (torch.tensor(g[name]).double() - exact).square().mean().sqrt().item()
        for name in ("chunked", "own")
    }
    return {
        "dtype": str(dtype).removeprefix("torch."), "steps": steps, "eps": opt.options.eps,
        "tokens": micro_batch * config.data.sequence_length, "noise": opt.options.family,
        "g_rms": exact.square().mean().sqrt().item(), **off, "g": g["exact"],
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Format one line for each type."""
    lines = ["| model | g | error by `sw.ChunkedLoss` | error by the model's own loss |"]
    lines.append("|---" * 4 + "|")
    for row in rows:
        errors = (f"{row[f'error_{name}']:.2g}" for name in ("chunked", "own"))
        lines.append(f"| {row['dtype']} | {row['g_rms']:.2f} | {' | '.join(errors)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and write, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batch", type=int, default=8, help="8 have 2,048 tokens")
    args = parser.parse_args()
    if not args.table:
        warnings.simplefilter("ignore")  # The warning says that norms are bf16, which is intended.
        rows = [measure(t, args.steps, args.micro_batch) for t in (torch.float32, torch.bfloat16)]
        write_rows(RESULTS, rows, machine=machine())
    print(table(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()
