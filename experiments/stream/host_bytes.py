"""Measure the host memory of full AdamW whose states are in host memory, a parameter.

    python -m experiments.stream.host_bytes            # all cases, appends rows
    python -m experiments.stream.host_bytes --table

Each case trains two steps of a bf16 Llama with gradients clipped, in a process of its own. Host
memory is what the engine counts on the tiers host and pinned: states, weights that are streamed,
gradients that wait for the norm, and the rings through which they pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from sluiceway.base.sizes import format_bytes

from experiments.harness import append_row, provenance, read_rows

RESULTS = Path(__file__).with_name("host_bytes.jsonl")
# Parameters in millions: hidden, intermediate size, blocks.
SHAPES = {"50": (512, 1408, 14), "200": (1024, 2816, 15), "800": (2048, 5632, 15)}
CODECS = ("fp32", "bf16", "8bit")
WEIGHTS = ("resident", "streamed")
VOCABULARY, TOKENS, STEPS = 4096, 32, 2


def measured(shape: str, codec: str, weights: str) -> dict[str, Any]:
    """Train in this process, and return bytes."""
    import sluiceway as sw
    from transformers import AutoModelForCausalLM, LlamaConfig

    hidden, mlp, blocks = SHAPES[shape]
    with torch.device("meta"):
        net = AutoModelForCausalLM.from_config(
            LlamaConfig(
                hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=blocks,
                num_attention_heads=hidden // 64, vocab_size=VOCABULARY, tie_word_embeddings=True,
            ),
            dtype=torch.bfloat16,
        )  # fmt: skip
    net.to_empty(device="cpu")
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    for name, buffer in net.named_buffers():
        buffer.fill_(0.5)
        assert "inv_freq" in name
    with sw.OffloadAdamW(
        net.train(), lr=1e-5, tier="host", state_codec=codec, weights=weights, max_norm=0.1
    ) as opt:
        for _ in range(STEPS):
            ids = torch.zeros((1, TOKENS), dtype=torch.long)
            net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            opt.step()
            opt.zero_grad()
        opt.synchronize()
        peaks = opt.stats()["peak_bytes"]
    parameters = sum(p.numel() for p in net.parameters())
    return {"parameters": parameters, "host": peaks["host"], "pinned": peaks["pinned"]}


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| weights | states | parameters | host | pinned | host bytes a parameter |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        each = (row["host"] + row["pinned"]) / row["parameters"]
        lines.append(
            f"| {row['weights']} | {row['codec']} | {row['parameters'] / 1e6:,.0f} M "
            f"| {format_bytes(row['host'])} | {format_bytes(row['pinned'])} | {each:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the cases, or show the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=SHAPES, default=SHAPES, metavar="MILLIONS")
    parser.add_argument("--table", action="store_true", help="print host_bytes.jsonl")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        return print(json.dumps(measured(*args.case)))
    if not args.table:
        for shape, codec, weights in itertools.product(args.only, CODECS, WEIGHTS):
            case = {"shape": shape, "codec": codec, "weights": weights}
            command = [sys.executable, "-m", "experiments.stream.host_bytes", "--case"]
            done = subprocess.run([*command, *case.values()], check=True, stdout=subprocess.PIPE)
            append_row(RESULTS, {**case, **json.loads(done.stdout), **provenance()})
    return print(table(read_rows(RESULTS)))


if __name__ == "__main__":
    main()
