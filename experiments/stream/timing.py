"""Time steps of streamed weights against the busiest of device, link, drive and host.

    python -m experiments.stream.timing --folder /dev/shm/timing     # all cases, appends rows
    python -m experiments.stream.timing --folder ... --only disk:fp32
    python -m experiments.stream.timing --table

The work of the device is a wait: each block takes the seconds that its matrix products take on a
device of `TFLOPS`, and its gradients are constants. Links and drives are paced (`link`,
`rate_gbps`). Rates have the ratios of a desktop computer, and all are slower by `SLOWER`, so that
processor and drive of this machine are not what a step waits for. In a folder in memory the pace is
all that the drive takes. AdamW on the host is real.

A row has the seconds of a step, the seconds for which each resource works in it, and what
`sluiceway plan` predicts. A forward needs a quarter of the work of the device and half of that of
the link; so `phases` is the least that overlapping within forward and backward can reach: the sum
of the busiest resource of each. The same step with blocking transfers fetches a block when its turn
comes, and waits for the updates before the next step.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.harness import append_row, provenance, read_rows
from experiments.stream.memory import planned

RESULTS = Path(__file__).with_name("timing.jsonl")
# A desktop computer: 80 TFLOPS of bf16, PCIe 4.0 x8, a drive of PCIe 4.0 x4.
TFLOPS, LINK_GBPS, DRIVE_GBPS = 80.0, 12.0, 4.0
# How many times slower everything is. With states in host memory, a step moves only weights and
# gradients over the link, so the host's own AdamW would soon be what it waits for.
SLOWER = {"disk": 4.0, "host": 40.0}
TOKENS = (256, 1024, 4096, 8192, 16384)
CASES = ("disk:fp32", "disk:8bit", "host:fp32", "host:8bit")
BLOCKS, HIDDEN, MLP, VOCABULARY = 32, 768, 2048, 512
# So gradients do not touch the drive; and in host memory states change in place.
POLICY = {"disk": "speculative", "host": "spill"}
WARM, STEPS = 1, 4


def config_of(case: str, tokens: int, folder: Path) -> Path:
    """Write model and config of a case, which `sluiceway plan` reads."""
    import yaml
    from transformers import LlamaConfig

    tier, codec = case.split(":")
    slower = SLOWER[tier]
    shape = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=BLOCKS,
        num_attention_heads=HIDDEN // 64, vocab_size=VOCABULARY, tie_word_embeddings=False,
        max_position_embeddings=max(TOKENS), architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    shape.save_pretrained(folder / "model")
    gbps = LINK_GBPS / slower
    tree = {
        "model": {"path": str(folder / "model"), "dtype": "bf16"},
        "data": {"train": ["pydoc"], "eval": [], "sequence_length": tokens},
        "train": {"steps": 8, "micro_batch": 1, "accumulate": 1, "lr": 1e-5, "max_norm": None},
        "engine": {
            "kind": "offload", "tier": tier, "weights": "streamed", "gradients": "bf16",
            "state_codec": codec, "policy": POLICY[tier],
        },
        "device": {
            "name": "host", "threads": 1, "tflops": TFLOPS / slower,
            "link": {"d2h_gbps": gbps, "h2d_gbps": gbps},
        },
    }  # fmt: skip
    if tier == "disk":
        tree["store"] = {"path": str(folder / "store"), "rate_gbps": DRIVE_GBPS / slower}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder / "config.yaml"


# ---- A block that waits --------------------------------------------------------------------------


class _Waits(torch.autograd.Function):
    """Takes the time of a block's products, and gives each weight a constant gradient."""

    @staticmethod
    def forward(ctx: Any, seconds: float, hidden: torch.Tensor, *weights: torch.Tensor) -> Any:
        ctx.seconds, ctx.likes = seconds, [(w.shape, w.dtype) for w in weights]
        time.sleep(seconds)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # The engine has each gradient as soon as its product is done, so one block is many nodes
        # in truth; here all come at the end of the block.
        time.sleep(2 * ctx.seconds)
        return None, gradient, *[torch.full(shape, 1e-3, dtype=kind) for shape, kind in ctx.likes]


def waiting_model(folder: Path, tokens: int, flops: float) -> nn.Module:
    """Build the model with blocks that wait for the seconds of their products."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    class Waiting(LlamaDecoderLayer):
        def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
            matrices = [p for p in self.parameters() if p.ndim == 2]
            seconds = 2 * tokens * sum(p.numel() for p in matrices) / flops
            return _Waits.apply(seconds, hidden_states, *self.parameters())

    net = AutoModelForCausalLM.from_config(
        LlamaConfig.from_pretrained(folder / "model"), dtype=torch.bfloat16
    )
    for layer in net.model.layers:
        layer.__class__ = Waiting
    return net


# ---- Cases ---------------------------------------------------------------------------------------


def measured(case: str, tokens: int, folder: Path, blocking: bool) -> dict[str, Any]:
    """Time the steps of one case in this process."""
    import sluiceway as sw
    from sluiceway.optim.offload import streamed_blocks

    tier, codec = case.split(":")
    slower = SLOWER[tier]
    gbps, drive = LINK_GBPS / slower, DRIVE_GBPS / slower
    ahead, streamed_blocks._AHEAD = streamed_blocks._AHEAD, 0 if blocking else 1
    net = waiting_model(folder, tokens, 1e12 * TFLOPS / slower).train()
    options: dict[str, Any] = {"path": folder / "store", "rate_gbps": drive}
    shutil.rmtree(folder / "store", ignore_errors=True)
    ids = torch.zeros((1, 2), dtype=torch.long)  # The blocks wait for `tokens`; these are few.
    marks, all_stats = [], []
    try:
        with sw.OffloadAdamW(
            net, lr=1e-5, tier=tier, weights="streamed", state_codec=codec, policy=POLICY[tier],
            accumulate=1, _redo=False, link=sw.Link(d2h_gbps=gbps, h2d_gbps=gbps),
            **(options if tier == "disk" else {}),
        ) as opt:  # fmt: skip
            for _ in range(WARM + STEPS + 1):
                marks.append(time.perf_counter())
                net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                opt.step()
                opt.zero_grad()
                if blocking:
                    opt.synchronize()
                all_stats.append(opt.stats())
    finally:
        streamed_blocks._AHEAD = ahead
        shutil.rmtree(folder / "store", ignore_errors=True)
    steps = [b - a for a, b in zip(marks[WARM:], marks[WARM + 1 :], strict=False)]
    stats = all_stats[-1]
    moved = stats["bytes"]
    blocks = 2 * tokens * sum(p.numel() for p in net.model.layers.parameters() if p.ndim == 2)
    busy = {
        "device": 4 * blocks / (1e12 * TFLOPS / slower),
        "h2d": moved["h2d"] / (1e9 * gbps),
        "d2h": moved["d2h"] / (1e9 * gbps),
        "drive": (moved.get("disk_read", 0) + moved.get("disk_written", 0)) / (1e9 * drive)
        if tier == "disk"
        else 0.0,
        "host": statistics.median(s["host_seconds"] for s in all_stats[WARM:]),
    }
    fetch = busy["h2d"] / 2
    phases = max(busy["device"] / 4, fetch) + max(3 * busy["device"] / 4, fetch, busy["d2h"])
    least = max(phases, *busy.values())
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "step_s": statistics.mean(steps),
        "steps": steps,
        "busy_s": busy,
        "to_busiest": statistics.mean(steps) / max(busy.values()),
        "to_phases": statistics.mean(steps) / least,
    }


def rows_of(case: str, folder: Path) -> list[dict[str, Any]]:
    """Measure a case at every number of tokens, with overlap and without in turns."""
    rows = []
    for tokens in TOKENS:
        plan = planned(config_of(case, tokens, folder))
        row: dict[str, Any] = {
            "case": case,
            "tokens": tokens,
            "planned_s": plan["seconds_per_step"],
        }
        row.update(measured(case, tokens, folder, blocking=False))
        row["blocking_s"] = measured(case, tokens, folder, blocking=True)["step_s"]
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| case | tokens | step, s | busiest | step / busiest | step / phases | planned / step "
        "| blocking / step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        busiest = max(row["busy_s"], key=row["busy_s"].get)
        lines.append(
            f"| {row['case']} | {row['tokens']:,} | {row['step_s']:.3f} | {busiest} "
            f"| {row['to_busiest']:.3f} | {row['to_phases']:.3f} "
            f"| {row['planned_s'] / row['step_s']:.3f} | {row['blocking_s'] / row['step_s']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the cases, or show the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where model and store go, such as /dev/shm/x")
    parser.add_argument("--only", nargs="*", default=CASES, metavar="TIER:CODEC")
    parser.add_argument("--table", action="store_true", help="print timing.jsonl")
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(RESULTS)))
    if args.folder is None:
        parser.error("--folder is missing; name a folder for model and store, such as /dev/shm/x")
    args.folder.mkdir(parents=True, exist_ok=True)
    for case in args.only:
        for row in rows_of(case, args.folder):
            append_row(RESULTS, {**row, **provenance()})
    return print(table(read_rows(RESULTS)))


if __name__ == "__main__":
    main()
