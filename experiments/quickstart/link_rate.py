"""Measure this machine's compute rate, and print the link rate that keeps a laptop's ratio to it.

Measures forward and backward on one core or on a card, in the precision of the quickstart's runs.

    python -m experiments.quickstart.link_rate

The formula and the card's numbers are in configs/quickstart.yaml. The demo runs this script as a
separate process, because the measurement binds itself to one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.harness import REPOSITORY

if TYPE_CHECKING:
    import torch
    from sluiceway.machine.placement import Placement

CARD_LINK_GBPS = 12.0
CARD_FLOP_PER_S = 14.6e12
CARD_TOKENS = 1024
LINK_BYTES = 64 << 20  # Bytes and repeats of the copies that measure an unthrottled link.


def derived_link_gbps(flop_per_s: float, tokens_per_step: int) -> float:
    """B_here = B_card (F_here / F_card) (T_card / T_here): transfer to compute as on the card."""
    return CARD_LINK_GBPS * flop_per_s / CARD_FLOP_PER_S * CARD_TOKENS / tokens_per_step


def flop_per_token(model: torch.nn.Module, length: int) -> float:
    """Count six operations per weight of a product, and the two products of causal attention."""
    import torch

    config = model.config
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    attention = config.num_hidden_layers * config.hidden_size * length
    return 6.0 * (linear + attention)


def step_seconds(
    model: torch.nn.Module, placement: Placement, rows: int, length: int, repeats: int
) -> float:
    """Median seconds of a forward and backward.

    On the host device these are processor seconds of one thread, since other programs may run.
    """
    import torch

    device = placement.device

    def clock() -> float:
        if device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(device)
        return time.perf_counter()

    torch.set_num_threads(1)
    model.to(device)
    tokens = torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(device)
    times = []
    for _ in range(repeats + 2):
        began = clock()
        with placement.cast():
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        times.append(clock() - began)
        model.zero_grad()
    return statistics.median(times[2:])


def measure(path: Path, repeats: int, device: str | None = None) -> dict[str, Any]:
    """Measure this machine's compute rate on a config's micro-batches; derive the link rate.

    Parameters
    ----------
    device : str, optional
        Replaces the config's device.name.
    """
    import torch
    from sluiceway.config.file import load_config
    from sluiceway.machine.placement import choose_placement
    from sluiceway.machine.roofs import link_seconds
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    named = [] if device is None else [f"device.name={device}"]
    config = load_config(path, ["device.pin=false", *named])
    rows, length = config.train.micro_batch, config.data.sequence_length
    tokens_per_step = rows * length * config.train.accumulate
    model = AutoModelForCausalLM.from_pretrained(
        REPOSITORY / config.model.path, dtype=torch.float32
    )
    placement = choose_placement(config)
    seconds = step_seconds(model, placement, rows, length, repeats)
    rate = flop_per_token(model, length) * rows * length / seconds
    crossing = link_seconds(LINK_BYTES, placement.device)
    return {
        "device": placement.name,
        "flop_per_token": flop_per_token(model, length),
        "tokens_per_step": tokens_per_step,
        "precision": placement.autocast or "fp32",
        "seconds": seconds,
        "flop_per_s": rate,
        "link_gbps": derived_link_gbps(rate, tokens_per_step),
        "own_link_gbps": {way: LINK_BYTES / s / 1e9 for way, s in crossing.items()},
    }


def measured(config: Path, device: str | None = None) -> dict[str, Any]:
    """Run this script in a process of its own and return its output."""
    command = [sys.executable, "-m", __spec__.name, "--config", str(config.resolve())]
    if device is not None:
        command += ["--device", device]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    return json.loads(done.stdout)


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", help="auto, host or cuda:N; replaces the config's")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps(measure(args.config, args.repeats, args.device)))


if __name__ == "__main__":
    main()
