"""Fine-tune 1.35 G parameters from a drive, with 2 GiB for the device and 1 GiB beside it.

    python -m experiments.stream.finetune --folder /nvme/scratch    # appends a row
    python -m experiments.stream.finetune --table

A model of the shape `llama_1_3b`, with random weights in fp32, reads the documentation of Python as
bytes, 256 tokens a step. Its weights and states are in a store on the drive. With root, the process
runs in a memory cgroup that has room for the budget of the device and 1 GiB more: on the host
device the device's bytes are the process's too. It is killed in the middle, resumed from the last
committed step, evaluated and exported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from sluiceway.base.sizes import format_bytes

from experiments.harness import REPOSITORY, append_row, provenance, read_rows
from experiments.laptop.run import write_model
from experiments.quickstart.run_folder import RunFolder
from experiments.stream.memory import limited, planned

RESULTS = Path(__file__).with_name("finetune.jsonl")
SHAPE = REPOSITORY / "configs/shapes/llama_1_3b"
TOKENS, STEPS, KILLED_AFTER = 256, 20, 8
DEVICE, BESIDE = 2 << 30, 1 << 30


def config_of(model: Path, folder: Path) -> Path:
    """Write the config of the run."""
    tree = {
        "model": {"path": str(model), "dtype": "fp32"},
        "data": {"train": ["pydoc"], "eval": ["pydoc"], "sequence_length": TOKENS},
        "train": {
            "steps": STEPS, "micro_batch": 1, "lr": 1e-4, "warmup_steps": 2, "loss": "sliced",
            "eval_sequences": 4,
        },
        "engine": {
            "kind": "offload", "tier": "disk", "weights": "streamed", "gradients": "bf16",
            "state_codec": "8bit",
        },
        "store": {"path": str(folder / "store")},
        "budget": {"device": DEVICE},
        "device": {"name": "host", "threads": 2},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Return the lines of steps that a run has written."""
    return RunFolder(run).steps if (run / "metrics.jsonl").exists() else []


def sluiceway(group: Path | None, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a command in a memory cgroup."""
    command = [sys.executable, "-m", "sluiceway", *map(str, arguments)]
    if group is not None:
        enter = f'echo $$ > {group / "tasks"}; exec "$@"'
        command = ["sh", "-c", enter, "sh", *command]
    return subprocess.Popen(command)


def measured(folder: Path) -> dict[str, Any]:
    """Train, kill, resume, evaluate and export."""
    model = write_model(SHAPE, folder / "model")
    config, run = config_of(model, folder), folder / "run"
    plan = planned(config)
    with limited(DEVICE + BESIDE) as group:
        process = sluiceway(group, "train", config, "--out", run)
        while len(steps_of(run)) < KILLED_AFTER and process.poll() is None:
            time.sleep(0.5)
        time.sleep(2)  # Into the next step.
        process.kill()
        process.wait()
        at_kill = len(steps_of(run))
        resumed = sluiceway(group, "resume", run).wait()
        peak = None if group is None else int((group / "memory.max_usage_in_bytes").read_text())
    steps = steps_of(run)
    exported = sluiceway(None, "export", run, "--to", folder / "exported").wait()
    evaluate = [sys.executable, "-m", "sluiceway", "eval", str(run), "--sequences", "4", "--json"]
    found = subprocess.run(evaluate, capture_output=True, check=False)
    row = {
        "parameters": plan["parameters"]["trained"],
        "plan": {key: plan[key] for key in ("peak_bytes", "bytes_per_step", "seconds_per_step")},
        "limit": None if group is None else DEVICE + BESIDE,
        "group_peak": peak,
        "steps_at_kill": at_kill,
        "resume": resumed,
        "losses": [line["loss"] for line in steps],
        "seconds": [line["seconds"] for line in steps],
        "bytes": steps[-1]["bytes"],
        "peak_bytes": steps[-1]["peak_bytes"],
        "export": exported,
        "evaluated": json.loads(found.stdout) if found.returncode == 0 else found.returncode,
    }
    shutil.rmtree(folder)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| parameters | device, planned | device | largest memory of the group | steps | loss, "
        "first and last | held-out loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        peak, planned_bytes = row["peak_bytes"], row["plan"]["peak_bytes"]["device"]
        largest = row["group_peak"] or peak["process"]
        lines.append(
            f"| {row['parameters'] / 1e6:,.0f} M "
            f"| {format_bytes(planned_bytes)} | {format_bytes(peak['device'])} "
            f"| {format_bytes(largest)} | {len(row['losses'])}, killed after "
            f"{row['steps_at_kill']} | {row['losses'][0]:.2f}, {row['losses'][-1]:.2f} "
            f"| {row['evaluated']['loss']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, or show the recorded rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a new folder on the drive to train from")
    parser.add_argument("--table", action="store_true", help="print finetune.jsonl")
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(RESULTS)))
    if args.folder is None:
        parser.error("--folder is missing; name a new folder on the drive to train from")
    args.folder.mkdir(parents=True)
    append_row(RESULTS, {**measured(args.folder), **provenance()})
    return print(table(read_rows(RESULTS)))


if __name__ == "__main__":
    main()
