"""Measure inputs of blocks that leave the device: the longest sequence that fits, and the time.

    python -m experiments.stream.context --folder /dev/shm/context    # appends rows
    python -m experiments.stream.context --table

`longest` trains a small Llama with as many blocks as one of 7 G parameters. For each way it looks
by bisection for the longest sequence with which a step stays inside of a budget of the device,
counted as torch's allocations. The weights after a step are compared, bit for bit, with those of
plain checkpointing.

`time` compares steps whose inputs leave, in turns with steps whose inputs stay. As in `timing.py`,
blocks wait for as long as their products take on the device of a desktop computer, and link and
drive are paced.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from sluiceway.base.sizes import format_bytes
from torch import nn

from experiments.harness import append_row, provenance, read_rows
from experiments.stream.timing import (
    BLOCKS,
    DRIVE_GBPS,
    LINK_GBPS,
    SLOWER,
    TFLOPS,
    config_of,
    waiting_model,
)

RESULTS = Path(__file__).with_name("context.jsonl")
BUDGET = 160 << 20
WAYS = ("whole", "device", "host", "disk")  # whole: without checkpointing.
FIRST, PRECISION = 512, 32  # Tokens; a share of the longest sequence.
TOKENS = (1024, 4096, 16384)
WARM, TURNS = 1, 6


# ---- The longest sequence ------------------------------------------------------------------------


def small_model() -> nn.Module:
    """Build a Llama of 32 blocks and 25 M parameters."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=32, num_attention_heads=4,
        vocab_size=256, max_position_embeddings=1 << 20, tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).train()


def one_step(way: str, tokens: int, folder: Path) -> dict[str, Any]:
    """Make one step in this process; return device bytes, and a digest of the weights."""
    import hashlib

    import sluiceway as sw

    net = small_model()
    if way != "whole":
        net.gradient_checkpointing_enable({"use_reentrant": False})
    place = "device" if way == "whole" else way
    path = {"path": folder / "store"} if way == "disk" else {}
    digest = hashlib.sha256()
    ids = torch.randint(0, 256, (1, tokens), generator=torch.Generator().manual_seed(1))
    tier = "disk" if way == "disk" else "host"
    with sw.OffloadAdamW(net, lr=1e-4, tier=tier, activations=place, **path) as opt:
        loss_of = sw.ChunkedLoss(net, graph=True)
        loss_of(input_ids=ids, labels=ids, use_cache=False).backward()
        opt.step()
        opt.zero_grad()
        opt.synchronize()
        for parameter in net.parameters():
            digest.update(parameter.detach().view(torch.int16).numpy().tobytes())
        stats = opt.stats()
    return {
        "device": stats["peak_bytes"]["device"],
        "pinned": stats["peak_bytes"]["pinned"],
        "weights": digest.hexdigest(),
    }


def probed(way: str, tokens: int, folder: Path) -> dict[str, Any]:
    """Make one step in a process of its own."""
    command = [sys.executable, "-m", "experiments.stream.context", "--folder", str(folder)]
    command += ["--way", way, "--tokens", str(tokens)]
    shutil.rmtree(folder / "store", ignore_errors=True)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def longest(way: str, folder: Path) -> dict[str, Any]:
    """Find the longest sequence that fits in the budget, to within 1 / PRECISION of it."""
    probes: dict[int, dict[str, Any]] = {}

    def fits(tokens: int) -> bool:
        probes[tokens] = probed(way, tokens, folder)
        used = probes[tokens]["device"]
        print(f"{way}: {tokens} tokens, {format_bytes(used)}", file=sys.stderr, flush=True)
        return used <= BUDGET

    below, above = 0, FIRST
    while fits(above):
        below, above = above, 2 * above
    while above - below > max(1, below // PRECISION):
        tokens = (below + above) // 2
        below, above = (tokens, above) if fits(tokens) else (below, tokens)
    return {"tokens": below, **probes[below]}


def longest_rows(folder: Path) -> list[dict[str, Any]]:
    """Measure every way; all ways' weights after a step of one length are compared."""
    same = {way: probed(way, FIRST, folder)["weights"] for way in WAYS}
    return [
        {"what": "longest", "way": way, "budget": BUDGET, "same": same[way] == same["device"],
         **{key: value for key, value in longest(way, folder).items() if key != "weights"}}
        for way in WAYS
    ]  # fmt: skip


# ---- Time ----------------------------------------------------------------------------------------


def time_row(place: str, tokens: int, folder: Path) -> dict[str, Any]:
    """Time steps whose inputs leave and steps whose inputs stay, in turns."""
    import sluiceway as sw

    tier = "disk" if place == "disk" else "host"
    slower = SLOWER["host"]
    gbps, drive = LINK_GBPS / slower, DRIVE_GBPS / slower
    config_of(f"{tier}:8bit", tokens, folder)  # Writes the shape.
    ids = torch.zeros((1, tokens), dtype=torch.long)
    seconds: dict[str, list[float]] = {place: [], "device": []}
    with ExitStack() as stack:
        ways = {}
        for where in (place, "device"):
            net = waiting_model(folder, tokens, 1e12 * TFLOPS / slower).train()
            store = folder / f"store-{where}"
            shutil.rmtree(store, ignore_errors=True)
            path = {"path": store, "rate_gbps": drive} if tier == "disk" else {}
            opt = sw.OffloadAdamW(
                net, lr=1e-5, tier=tier, weights="streamed", state_codec="8bit", policy="spill",
                accumulate=1, link=sw.Link(d2h_gbps=gbps, h2d_gbps=gbps), activations=where,
                **path,
            )  # fmt: skip
            ways[where] = net, stack.enter_context(opt)
        for turn in range(WARM + TURNS):
            for where, (net, opt) in ways.items():
                began = time.perf_counter()
                net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                opt.step()
                opt.zero_grad()
                opt.synchronize()
                if turn >= WARM:
                    seconds[where].append(time.perf_counter() - began)
        moved = {where: opt.stats()["bytes"] for where, (_, opt) in ways.items()}
        matrices = sum(p.numel() for p in net.model.layers.parameters() if p.ndim == 2)
    for where in ways:
        shutil.rmtree(folder / f"store-{where}", ignore_errors=True)
    pairs = [a / b for a, b in zip(seconds[place], seconds["device"], strict=True)]
    return {
        "what": "time",
        "place": place,
        "tokens": tokens,
        "blocks": BLOCKS,
        "seconds": seconds,
        "ratio": statistics.median(pairs),
        "device_s": 8 * tokens * matrices / (1e12 * TFLOPS / slower),
        "h2d_s": {where: moved[where]["h2d"] / (1e9 * gbps) for where in ways},
        "d2h_s": {where: moved[where]["d2h"] / (1e9 * gbps) for where in ways},
    }


# ---- Rows ----------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| inputs of blocks | longest sequence, tokens | device | bits of checkpointing |",
        "|---|---|---|---|",
    ]
    names = {"whole": "all activations stay", "device": "stay", "host": "leave for host memory",
             "disk": "leave for the drive"}  # fmt: skip
    lines += [
        f"| {names[row['way']]} | {row['tokens']:,} | {format_bytes(row['device'])} "
        f"| {'the same' if row['same'] else 'other'} |"
        for row in rows
        if row["what"] == "longest"
    ]
    lines += [
        "",
        "| inputs leave for | tokens | step, s | step / step with inputs on the device "
        "| device works, s | link, to the host and back, s |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["what"] == "time":
            step, place = statistics.median(row["seconds"][row["place"]]), row["place"]
            lines.append(
                f"| {place} | {row['tokens']:,} | {step:.2f} | {row['ratio']:.3f} "
                f"| {row['device_s']:.2f} | {row['d2h_s'][place]:.2f}, {row['h2d_s'][place]:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, or show the recorded rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a folder for models and stores")
    parser.add_argument("--only", choices=("longest", "time"))
    parser.add_argument("--table", action="store_true", help="print context.jsonl")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(RESULTS)))
    if args.folder is None:
        parser.error("--folder is missing; name a folder for models and stores")
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.way:
        return print(json.dumps(one_step(args.way, args.tokens, args.folder)))
    if args.only != "time":
        for row in longest_rows(args.folder):
            append_row(RESULTS, {**row, **provenance()})
    if args.only != "longest":
        for place in ("host", "disk"):
            for tokens in TOKENS:
                append_row(RESULTS, {**time_row(place, tokens, args.folder), **provenance()})
    return print(table(read_rows(RESULTS)))


if __name__ == "__main__":
    main()
