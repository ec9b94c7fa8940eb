"""Measure this machine's rate and print the link rate that keeps a laptop's ratio to it.

One core, forward and backward, in the precision that runs of the quickstart take here.

    python experiments/quickstart/link_rate.py

The formula and the card's numbers are in configs/quickstart.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
from run_folder import REPOSITORY
from sluiceway.config.file import load_config
from sluiceway.machine.placement import Placement, choose_placement
from transformers import AutoModelForCausalLM

CARD_LINK_GBPS = 12.0
CARD_FLOP_PER_S = 14.6e12
CARD_TOKENS = 1024


def flop_per_token(model: torch.nn.Module, length: int) -> float:
    """Six operations per weight of a product, and the two products of causal attention."""
    config = model.config
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    attention = config.num_hidden_layers * config.hidden_size * length
    return 6.0 * (linear + attention)


def step_seconds(
    model: torch.nn.Module, placement: Placement, rows: int, length: int, repeats: int
) -> float:
    """Median processor seconds of a forward and backward on one thread; others may run beside."""
    torch.set_num_threads(1)
    tokens = torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(repeats + 2):
        began = time.process_time()
        with placement.cast():
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        times.append(time.process_time() - began)
        model.zero_grad()
    return statistics.median(times[2:])


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    config = load_config(REPOSITORY / "configs/quickstart.yaml", ["device.pin=false"])
    placement = choose_placement(config)
    seconds = step_seconds(model, placement, args.rows, args.length, args.repeats)
    tokens = args.rows * args.length
    rate = flop_per_token(model, args.length) * tokens / seconds
    link = CARD_LINK_GBPS * rate / CARD_FLOP_PER_S * CARD_TOKENS / tokens
    print(json.dumps({
        "flop_per_token": flop_per_token(model, args.length), "tokens": tokens,
        "precision": placement.autocast or "fp32", "seconds": seconds, "flop_per_s": rate,
        "link_gbps": link,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
