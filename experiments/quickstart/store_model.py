"""Store a trained base model as the folder that the quickstart loads, and write its card.

    python -m experiments.quickstart.store_model --run runs/base

Weights are rounded to bf16; the losses on the card are measured after that, on the stored files.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from experiments.quickstart.byte_tokenizer import write_tokenizer
from experiments.quickstart.stdlib_corpus import SHINGLE_WORDS, Corpus, load_corpus
from experiments.quickstart.train_base import CONTEXT, SHORT, held_out_loss, shape_of

CARD = """---
license: apache-2.0
library_name: transformers
---
# Byte-level Llama, {millions:.1f} M parameters, trained on Python's standard library

A base model to fine-tune. It has read Python source and no English manual.

| what | value |
|---|---|
| shape | Llama; {layers} layers, hidden {hidden}, {heads} heads, intermediate {inner}, context {context}, tied embeddings |
| parameters | {parameters:,} (stored in bf16) |
| tokens | one per UTF-8 byte, and 256 for end of text and padding |
| text | source of the standard library of Python {python}: {train_files} files, {train_tokens:,} tokens |
| left out | `pydoc_data`, `test`, `idlelib`, `site-packages`, every folder named test or tests, and files that share {shingle} words in a row with `pydoc_data.topics`: {shared} |
| held out | {held_files} files, {held_tokens:,} tokens, chosen by the hash of the file's name |
| training | {steps:,} steps, {seen:,} tokens, {minutes:.0f} minutes of wall clock on one core that other jobs shared, fp32; Muon for matrices (lr {muon_lr}), AdamW for the rest (lr {adam_lr}); warmup, then linear to zero |
| **held-out loss** | **{loss_long:.4f} nats a byte** (all held-out files, windows of {context}); {loss_short:.4f} with windows of {short} |

Made by

```
python -m experiments.quickstart.train_base {budget} --seed {seed} --layers {layers} --inner {inner} --out runs/base
python -m experiments.quickstart.store_model --run runs/base {out}
```

{repeat} `training.json` holds the course of the run. The text is under the licence of Python (PSF).
"""  # noqa: E501 - rows of a table

COUNTED = "The schedule counts steps: a second run on one thread gives the same weights."
TIMED = (
    "The budget is wall-clock time, so a second run takes a different number of steps (a quiet "
    "core\ntakes more); `--steps {steps}` in its place counts the schedule in steps."
)


def card(corpus: Corpus, final: dict, losses: tuple[float, float], parameters: int,
         shape: LlamaConfig, out: Path) -> str:  # fmt: skip
    """Fill the card with the counts and measurements."""
    arguments = final["arguments"]
    counted = arguments["steps"] != "0"
    return CARD.format(
        layers=shape.num_hidden_layers,
        hidden=shape.hidden_size,
        heads=shape.num_attention_heads,
        inner=shape.intermediate_size,
        millions=parameters / 1e6,
        context=CONTEXT,
        short=SHORT,
        parameters=parameters,
        python=platform.python_version(),
        train_files=len(corpus.train_files),
        train_tokens=len(corpus.train),
        shingle=SHINGLE_WORDS,
        shared=", ".join(f"`{name}`" for name in corpus.shared_files),
        held_files=len(corpus.held_out_files),
        held_tokens=len(corpus.held_out),
        steps=final["step"],
        seen=final["tokens"],
        minutes=final["seconds"] / 60,
        muon_lr=arguments["muon_lr"],
        adam_lr=arguments["adam_lr"],
        budget=f"--steps {final['step']}" if counted else f"--minutes {arguments['minutes']}",
        out=f"--out {out}",
        repeat=COUNTED if counted else TIMED.format(steps=final["step"]),
        seed=arguments["seed"],
        loss_long=losses[0],
        loss_short=losses[1],
    )


def main() -> None:
    """Round, store, load again, evaluate, write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/base"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    final = json.loads((args.run / "final.json").read_text())
    shape = shape_of(*(int(final["arguments"][key]) for key in ("layers", "inner")))
    model = LlamaForCausalLM(shape)
    model.load_state_dict(torch.load(args.run / "best.pt", weights_only=True)["model"])
    model.to(torch.bfloat16).save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)
    write_tokenizer(args.out, CONTEXT)
    stored = AutoModelForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    corpus = load_corpus()
    held_out = torch.from_numpy(corpus.held_out)
    losses = (held_out_loss(stored, held_out, CONTEXT), held_out_loss(stored, held_out, SHORT))
    parameters = sum(p.numel() for p in stored.parameters())
    (args.out / "README.md").write_text(card(corpus, final, losses, parameters, shape, args.out))
    course = {**final, "held_out_512": losses[0], "held_out_256": losses[1]}
    (args.out / "training.json").write_text(json.dumps(course, indent=1) + "\n")
    print(f"{args.out}: {losses[0]:.4f} nats a byte, windows of {CONTEXT}; "
          f"{losses[1]:.4f}, windows of {SHORT}")  # fmt: skip


if __name__ == "__main__":
    main()
