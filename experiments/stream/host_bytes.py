"""Measure the host memory of full AdamW whose states are in host memory, wholly or in part.

    python -m experiments.stream.host_bytes                            # all cases, appends rows
    python -m experiments.stream.host_bytes --shared /dev/shm/states   # the same for tier auto
    python -m experiments.stream.host_bytes --table

Each case trains a few steps of a bf16 Llama with gradients clipped, in a process of its own. Host
memory is what the engine counts on the tiers host and pinned: states, weights that are streamed,
gradients that wait for the norm, and the rings through which they pass.

`--shared` gives tier auto room for a part of the states, and puts the rest on a drive that is
paced. It takes turns with the tiers host and disk, and compares the weights bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from sluiceway.base.sizes import format_bytes
from torch import nn

from experiments.harness import append_row, provenance, read_rows

RESULTS = Path(__file__).with_name("host_bytes.jsonl")
# Parameters in millions: hidden, intermediate size, blocks.
SHAPES = {"50": (512, 1408, 14), "200": (1024, 2816, 15), "800": (2048, 5632, 15)}
CODECS = ("fp32", "bf16", "8bit")
WEIGHTS = ("resident", "streamed")
VOCABULARY, TOKENS, STEPS = 4096, 32, 2
SHARED = Path(__file__).with_name("shared_tier.jsonl")
WAYS = ("host", "auto:0.75", "auto:0.5", "auto:0.25", "auto:0", "disk")  # Share of all states.
SHARED_SHAPE, STATE_BYTES = "50", 14  # With gradients, of a parameter.
SHARED_STEPS, TURNS, DRIVE_GBPS = 4, 3, 1.0


def model_of(shape: str) -> nn.Module:
    """Build a Llama whose weights depend on the shape alone."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
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
    return net.train()


def measured(shape: str, codec: str, weights: str) -> dict[str, Any]:
    """Train in this process, and return bytes."""
    import sluiceway as sw

    net = model_of(shape)
    with sw.OffloadAdamW(
        net, lr=1e-5, tier="host", state_codec=codec, weights=weights, max_norm=0.1
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


def shared(way: str, folder: Path, host_bytes: int) -> dict[str, Any]:
    """Train in this process with a part of the states in memory; return seconds and weights.

    Parameters
    ----------
    host_bytes : int
        What the tier host takes.
    """
    import sluiceway as sw

    net, (tier, _, share) = model_of(SHARED_SHAPE), way.partition(":")
    parameters = sum(p.numel() for p in net.parameters())
    where: dict[str, Any] = {"tier": tier}
    if tier != "host":
        where |= {"path": folder / tier, "rate_gbps": DRIVE_GBPS}
    if tier == "auto":
        left_out = (1 - float(share)) * STATE_BYTES * parameters
        where["budget"] = sw.Budget(host=int(host_bytes - left_out))
    seconds = []
    warnings.filterwarnings("ignore", message=".*no direct I/O", category=RuntimeWarning)
    with sw.OffloadAdamW(net, lr=1e-5, accumulate=1, max_norm=0.1, **where) as opt:
        for _ in range(1 + SHARED_STEPS):
            begin = time.perf_counter()
            ids = torch.zeros((1, TOKENS), dtype=torch.long)
            net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            opt.step()
            opt.zero_grad()
            opt.synchronize()
            seconds.append(time.perf_counter() - begin)
        stats = opt.stats()
    digest = hashlib.sha256()
    for parameter in net.parameters():
        digest.update(parameter.detach().view(torch.uint8).numpy().tobytes())
    moved = stats["bytes"]["disk_read"] + stats["bytes"]["disk_written"]
    peaks = {tier: stats["peak_bytes"][tier] for tier in ("host", "pinned", "disk")}
    found = {"parameters": parameters, "seconds": seconds[1:], "disk_bytes": moved, **peaks}
    return {**found, "weights_sha256": digest.hexdigest()}


def measure_shared(folder: Path) -> None:
    """Measure all ways in turns, and append a row for each."""
    taken: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way in WAYS:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            host_bytes = taken["host"][0]["host"] if taken["host"] else 0
            command = [sys.executable, "-m", "experiments.stream.host_bytes", "--way", way]
            done = subprocess.run(
                [*command, str(folder), str(host_bytes)], check=True, stdout=subprocess.PIPE
            )
            taken[way].append(json.loads(done.stdout))
    shutil.rmtree(folder)
    assert len({one["weights_sha256"] for found in taken.values() for one in found}) == 1
    for way, found in taken.items():
        seconds = [second for one in found for second in one["seconds"]]
        row = {**found[0], "seconds": seconds, "drive_gbps": DRIVE_GBPS}
        append_row(SHARED, {"way": way, **row, **provenance()})


def shared_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows of `--shared` as Markdown."""
    lines = [
        "| tier, share of states in memory | host | on disk | disk R + W a step | step, s |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['way']} | {format_bytes(row['host'] + row['pinned'])} "
            f"| {format_bytes(row['disk'])} | {format_bytes(row['disk_bytes'])} "
            f"| {statistics.median(row['seconds']):.2f} |"
        )
    return "\n".join(lines)


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
    parser.add_argument("--shared", type=Path, metavar="FOLDER", help="measure tier auto")
    parser.add_argument("--table", action="store_true", help="print the recorded rows")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        return print(json.dumps(measured(*args.case)))
    if args.way:
        way, folder, host_bytes = args.way
        return print(json.dumps(shared(way, Path(folder), int(host_bytes))))
    if args.shared:
        measure_shared(args.shared)
    elif not args.table:
        for shape, codec, weights in itertools.product(args.only, CODECS, WEIGHTS):
            case = {"shape": shape, "codec": codec, "weights": weights}
            command = [sys.executable, "-m", "experiments.stream.host_bytes", "--case"]
            done = subprocess.run([*command, *case.values()], check=True, stdout=subprocess.PIPE)
            append_row(RESULTS, {**case, **json.loads(done.stdout), **provenance()})
    print(table(read_rows(RESULTS)), shared_table(read_rows(SHARED)), sep="\n\n")


if __name__ == "__main__":
    main()
