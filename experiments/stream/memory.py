"""Measure the memory of full fine-tuning whose weights and states are streamed from a disk.

    python -m experiments.stream.memory --folder /nvme/scratch           # all cases, appends rows
    python -m experiments.stream.memory --folder ... --only 7b:2:fp32    # one
    python -m experiments.stream.memory --table

A case has blocks of a model's true shape, embedding and head included, with random bf16 weights. A
process of its own opens the folder, trains some steps from a store on disk, and ends. With root it
runs in a memory cgroup that has room for the planned bytes of the device and 3 GiB more: on the
host device the device's bytes are the process's too. Rows name what the engine counts on each tier,
what the plan says, and the largest anonymous memory of the process, which does not include pages
of the model's files: the kernel drops these as it likes. The link is paced, slower than the blocks
compute, so that as many gradients wait on the device as the plan allows for. A case with `lora` in
place of a state codec trains PEFT's adapters of rank 16 on all linear layers of the blocks, with
`lora8` on a base that is stored in 8 bits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from sluiceway.base.sizes import format_bytes
from torch import nn

from experiments.harness import REPOSITORY, append_row, provenance, read_rows
from experiments.laptop.run import write_model

RESULTS = Path(__file__).with_name("memory.jsonl")
SHAPES = {"1.3b": "llama_1_3b", "7b": "llama_7b", "70b": "llama_70b", "98b": "llama_98b"}
CASES = (
    "7b:2:fp32", "7b:4:fp32", "7b:8:fp32", "70b:1:8bit", "70b:2:8bit", "98b:1:8bit", "98b:2:8bit",
    "70b:1:lora", "70b:2:lora", "70b:1:lora8", "70b:2:lora8",
)  # fmt: skip
ON_FROZEN = {"lora": "identity", "lora8": "fp8"}  # Cases with adapters, and their frozen_codec.
RANK = 16
TOKENS, STEPS = 256, 3
LINK_GBPS = 0.5  # Slower than these blocks compute here, so that gradients wait as on a card.
BESIDE = 3 << 30  # Bytes that a process may take beside those of the device.
CGROUP = Path("/sys/fs/cgroup/memory")


def shaped(shape: str, blocks: int, folder: Path) -> Path:
    """Write a model with some blocks of a shape; one that is there stays."""
    shape_folder = folder / "shape"
    shape_folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((REPOSITORY / "configs/shapes" / SHAPES[shape] / "config.json").read_text())
    config["num_hidden_layers"] = blocks
    (shape_folder / "config.json").write_text(json.dumps(config))
    return write_model(shape_folder, folder / "model")


def config_of(model: Path, store: Path, codec: str) -> Path:
    """Write the config of a case, for `sluiceway plan`."""
    import yaml

    path = store.parent / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(model), "dtype": "bf16"},
                "data": {"train": ["pydoc"], "eval": [], "sequence_length": TOKENS},
                "train": {"steps": STEPS, "micro_batch": 1, "accumulate": 1, "lr": 1e-5},
                "engine": {
                    "kind": "offload", "tier": "disk", "weights": "streamed", "gradients": "bf16",
                    "state_codec": "fp32" if codec in ON_FROZEN else codec,
                    "frozen_codec": ON_FROZEN.get(codec, "identity"),
                },
                "store": {"path": str(store)},
                "device": {
                    "name": "host", "threads": 2,
                    "link": {"d2h_gbps": LINK_GBPS, "h2d_gbps": LINK_GBPS},
                },
            }
        )
    )  # fmt: skip
    return path


def with_adapters(net: nn.Module) -> nn.Module:
    """Freeze a model, and put adapters that are trained beside its linear layers."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(net, lora)


def planned_adapters(config: Path) -> dict[str, Any]:
    """Return what the plan of a config says for a model with adapters."""
    from sluiceway.config.file import load_config
    from sluiceway.run.planning import Prediction

    class WithAdapters(Prediction):
        def _build(self, layers: int | None = None) -> nn.Module:
            # torch cannot convert the modules of a model that it rehearses.
            with mock.patch.object(nn.Module, "to", lambda module, *_, **__: module):
                return with_adapters(super()._build(layers))

    found = WithAdapters(load_config(config))
    return {
        "peak_bytes": found.plan.tiers(found.rehearsal),
        "bytes_per_step": found.plan.links(),
        "seconds_per_step": found.plan.seconds(found.rehearsal, found.speeds),
    }


def planned(config: Path) -> dict[str, Any]:
    """Return what `sluiceway plan` says."""
    command = [sys.executable, "-m", "sluiceway", "plan", str(config), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


# ---- The process that trains ---------------------------------------------------------------------


class _Watch(threading.Thread):
    """Looks at this process's anonymous memory twenty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            self.most = max(self.most, anonymous_bytes())


def anonymous_bytes() -> int:
    """Return this process's memory without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {key: value for key, _, value in (line.partition(":") for line in lines)}
    return sum(1024 * int(sizes[key].split()[0]) for key in ("RssAnon", "RssShmem"))


def train(model: Path, store: Path, codec: str) -> dict[str, Any]:
    """Train in this process and return the figures."""
    import sluiceway as sw
    import torch
    from sluiceway import _host_allocator

    torch.set_num_threads(2)
    imported = anonymous_bytes()
    watch = _Watch()
    watch.start()
    _host_allocator.count()
    began = time.monotonic()
    net = sw.open_streamed(model).train()
    options = {"tier": "disk", "path": store, "state_codec": codec, "weights": "streamed"}
    if codec in ON_FROZEN:
        net = with_adapters(net)
        options |= {"state_codec": "fp32", "frozen_codec": ON_FROZEN[codec]}
    opened = time.monotonic()
    options["link"] = sw.Link(d2h_gbps=LINK_GBPS, h2d_gbps=LINK_GBPS)
    losses, steps = [], []
    with sw.OffloadAdamW(net, lr=1e-5, **options) as opt:
        made = time.monotonic()
        # A weight on its way to the store was memory of the host's part.
        _host_allocator.reset_peak()
        for step in range(STEPS):
            ids = torch.randint(
                0, 256, (1, TOKENS), generator=torch.Generator().manual_seed(step % 2)
            )
            loss = net(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
            steps.append(opt.stats())
            print(f"step {step}: loss {losses[-1]:.4f}", file=sys.stderr, flush=True)
        opt.commit()
        ended = time.monotonic()
        watch.ended.set()
        return {
            "parameters": sum(p.numel() for p in net.parameters()),
            "imported": imported,
            "anonymous": watch.most,
            "peak_bytes": steps[-1]["peak_bytes"],
            "bytes": [step["bytes"] for step in steps],
            "losses": losses,
            "seconds": {
                "open": opened - began, "copy": made - opened, "steps": ended - made,
                "of_step": [step["seconds"] for step in steps],
            },
        }  # fmt: skip


# ---- Cases ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Path | None]:
    """Make a memory cgroup; None if this process may not."""
    group = CGROUP / f"stream-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def measured(case: str, folder: Path) -> dict[str, Any]:
    """Run one case."""
    shape, blocks, codec = case.split(":")
    here = folder / case.replace(":", "_")
    shutil.rmtree(here, ignore_errors=True)
    model = shaped(shape, int(blocks), here)
    config = config_of(model, here / "store", codec)
    plan = planned_adapters(config) if codec in ON_FROZEN else planned(config)
    limit = plan["peak_bytes"]["device"] + BESIDE
    command = [sys.executable, "-m", "experiments.stream.memory", "--case", case]
    with limited(limit) as group:
        into = [] if group is None else ["--cgroup", str(group)]
        done = subprocess.run(
            [*command, "--folder", str(here), *into], stdout=subprocess.PIPE, check=False
        )
        used = None if group is None else int((group / "memory.max_usage_in_bytes").read_text())
    shutil.rmtree(here)
    row = {"case": case, "tokens": TOKENS, "limit": limit if into else None, "group_peak": used}
    row["plan"] = {key: plan[key] for key in ("peak_bytes", "bytes_per_step", "seconds_per_step")}
    if done.returncode:
        return {**row, "failed": done.returncode}
    return {**row, **json.loads(done.stdout)}


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| case | parameters | device, planned | device | process beside it | allowed | on disk "
        "| disk R + W a step, B/p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['case']} | | | failed with {row['failed']} | | | | |")
            continue
        device, plan = row["peak_bytes"]["device"], row["plan"]["peak_bytes"]
        last = row["bytes"][-1]
        moved = (last["disk_read"] + last["disk_written"]) / row["parameters"]
        lines.append(
            f"| {row['case']} | {row['parameters'] / 1e6:,.0f} M | {format_bytes(plan['device'])} "
            f"| {format_bytes(device)} | {format_bytes(row['anonymous'] - device)} "
            f"| {format_bytes(BESIDE) if row['limit'] else 'not limited'} "
            f"| {format_bytes(plan['disk'])} | {moved:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the cases, or show the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a folder on the disk to train from")
    parser.add_argument("--only", nargs="*", default=CASES, metavar="SHAPE:BLOCKS:CODEC")
    parser.add_argument("--table", action="store_true", help="print memory.jsonl")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(RESULTS)))
    if args.folder is None:
        parser.error("--folder is missing; name a folder on the disk to train from")
    if args.case is None:
        for case in args.only:
            append_row(RESULTS, {**measured(case, args.folder), **provenance()})
        return print(table(read_rows(RESULTS)))
    if args.cgroup is not None:
        (args.cgroup / "tasks").write_text(str(os.getpid()))
    _, _, codec = args.case.split(":")
    return print(json.dumps(train(args.folder / "model", args.folder / "store", codec)))


if __name__ == "__main__":
    main()
