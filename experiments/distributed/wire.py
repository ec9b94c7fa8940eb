"""Measure what crosses between two ranks in a step, and how long a step takes on a slow network.

    sudo python -m experiments.distributed.wire            # appends rows; `--only WAY ...` some
    python -m experiments.distributed.wire --table

Each rank is a process in a network namespace of its own, with one thread. A pair of virtual
Ethernet devices joins them, whose rate `tc` limits in both directions. Bytes are those that the
kernel counts on rank 0's device, sent in a step. With --only and --rate a part is measured.

A way is a data-parallel training of one Llama: by DistributedDataParallel with torch's AdamW, and
with PowerSGD in its hook; by SubspaceAdamW; and by ZoSgd. Weights are float32. The formula of a way
gives the bytes of its payload for a rank: with two ranks, an all-reduce sends a tensor once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.harness import REPOSITORY, append_row, provenance, read_rows

RESULTS = Path(__file__).with_name("wire.jsonl")
RATES = {"unlimited": None, "1gbit": 1000, "100mbit": 100}  # Mbit/s.
TOKENS = 256  # Of a rank in a step.
WARM, STEPS = 2, 5
DIRECTIONS = 8
SPACE = "sluiceway-wire"  # Begins the names of the namespaces.
WAYS = (
    "ddp", "powersgd", "default", "cores 1/2", "cores 1/4", "zo",
)  # fmt: skip


# ---- A rank --------------------------------------------------------------------------------------


def small_model() -> Any:
    """Build a Llama of 13.6 M parameters, of which 12.6 M are in matrices of blocks."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024, hidden_size=512, intermediate_size=1376, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=True,
            max_position_embeddings=TOKENS,
        )
    )  # fmt: skip


def make(way: str, model: Any) -> tuple[Any, Any, Callable[[], int]]:
    """Return the module to call, the optimizer, and a function for the bytes of the formula."""
    import sluiceway as sw
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if way in ("ddp", "powersgd"):
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        whole = 4 * sum(p.numel() for p in model.parameters())
        if way == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=4, start_powerSGD_iter=2
            )
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            whole = sum(4 * 4 * sum(p.shape) if p.dim() > 1 else 4 * p.numel()
                        for p in model.parameters())  # fmt: skip
        return ddp, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda: whole
    if way == "zo":
        opt = sw.ZoSgd(model, lr=1e-4, directions=DIRECTIONS)
        return model, opt, lambda: opt.stats()["ranks"]["sent_bytes"]
    options = {
        "default": {},
        "cores 1/2": {"codec": "block_random", "ratio": 0.5, "residual": "none"},
        "cores 1/4": {"codec": "block_random", "ratio": 0.25, "residual": "none"},
    }[way]
    opt = sw.SubspaceAdamW(model, lr=1e-3, **options)
    return model, opt, lambda: opt.stats()["ranks"]["sent_bytes"]


def rank_main(way: str, rank: int, address: str) -> None:
    """Train as one rank, and let rank 0 print the seconds and bytes of each step."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", address, rank=rank, world_size=2)
    model = small_model()
    module, opt, formula = make(way, model)
    ids = torch.randint(0, 1024, (1, TOKENS), generator=torch.Generator().manual_seed(rank))
    counter = Path(f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes")

    def loss() -> Any:
        return module(input_ids=ids, labels=ids, use_cache=False).loss

    found = []
    for _ in range(WARM + STEPS):
        torch.distributed.barrier()
        sent, began = int(counter.read_text()), time.perf_counter()
        if way == "zo":
            value = opt.step(loss)
        else:
            value = loss()
            value.backward()
            opt.step()
            opt.zero_grad()
            getattr(opt, "synchronize", lambda: None)()
        seconds = time.perf_counter() - began
        found.append((seconds, int(counter.read_text()) - sent, value.item()))
    if rank == 0:
        print(json.dumps({"steps": found[WARM:], "formula_bytes": formula()}), flush=True)
    torch.distributed.destroy_process_group()


# ---- Two namespaces ------------------------------------------------------------------------------


def command(*words: object, check: bool = True) -> None:
    """Run a command that changes the network."""
    subprocess.run([*map(str, words)], check=check, capture_output=True)


def connect(mbits: int | None) -> None:
    """Make two namespaces that are joined by a pair of devices of a rate."""
    disconnect()
    command("ip", "link", "add", "wire0", "type", "veth", "peer", "name", "wire1")
    for k in range(2):
        space = f"{SPACE}{k}"
        inside = ("ip", "-n", space)
        command("ip", "netns", "add", space)
        command("ip", "link", "set", f"wire{k}", "netns", space)
        command(*inside, "addr", "add", f"10.77.0.{k + 1}/24", "dev", f"wire{k}")
        command(*inside, "link", "set", "lo", "up")
        command(*inside, "link", "set", f"wire{k}", "up")
        if mbits is not None:
            command(
                "ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", f"wire{k}", "root",
                "tbf", "rate", f"{mbits}mbit", "burst", "256kb", "latency", "400ms",
            )  # fmt: skip


def disconnect() -> None:
    """Remove the namespaces, and the devices with them."""
    for k in range(2):
        command("ip", "netns", "del", f"{SPACE}{k}", check=False)
    command("ip", "link", "del", "wire0", check=False)


def measure(way: str, rate: str) -> dict[str, Any]:
    """Train on both ranks over a network of a rate; return a row."""
    connect(RATES[rate])
    jobs = []
    for k in range(2):
        environment = {
            **os.environ, "GLOO_SOCKET_IFNAME": f"wire{k}", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip
        words = ["--way", way, "--rank", str(k), "--address", "tcp://10.77.0.1:29400"]
        jobs.append(
            subprocess.Popen(
                ["ip", "netns", "exec", f"{SPACE}{k}", sys.executable, "-m", __spec__.name, *words],
                env=environment, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        out = [job.communicate(timeout=600)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
        disconnect()
    if any(job.returncode for job in jobs):
        sys.exit(f"{way} at {rate}: a rank failed, as is said above")
    said = json.loads(out[0].splitlines()[-1])
    seconds, sent, losses = zip(*said["steps"], strict=True)
    return {
        "way": way,
        "rate": rate,
        "tokens": TOKENS,
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "sent_bytes": statistics.median(sent),
        "formula_bytes": said["formula_bytes"],
        "last_loss": losses[-1],
        **provenance(),
    }


# ---- The table -----------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table: bytes of each way, and seconds at each rate."""
    by_case = {(row["way"], row["rate"]): row for row in rows}
    lines = [
        "| way | payload, formula | sent, counted | "
        + " | ".join(f"s at {r}" for r in RATES)
        + " |",
        "|---|---|---|" + "---|" * len(RATES),
    ]
    for way in WAYS:
        found = [by_case.get((way, rate)) for rate in RATES]
        if not any(found):
            continue
        one = next(row for row in found if row)
        seconds = [f"{row['seconds']:.3g}" if row else "-" for row in found]
        payload, sent = one["formula_bytes"], one["sent_bytes"]
        lines.append(f"| {way} | {payload:,} | {sent:,.0f} | {' | '.join(seconds)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every way at every rate, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rate", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        rank_main(given.way, given.rank, given.address)
    elif given.table:
        print(table(read_rows(RESULTS)))
    elif os.geteuid() != 0:
        sys.exit("wire: network namespaces need root; run it with sudo")
    else:
        for rate in given.rate:
            for way in given.only:
                row = measure(way, rate)
                append_row(RESULTS, row)
                print(f"{rate:>10} {way:>10} {row['seconds']:.3f} s {row['sent_bytes']:,.0f} bytes")


if __name__ == "__main__":
    main()
