"""Run one side in a separate process; print a line of JSON for each event.

    python -m experiments.peers.one_run SIDE --size 25M --steps 10 --folder FOLDER

The lines are `ready`, one `step` for each step, and `done`. Output of libraries goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import TextIO

import torch

from experiments.peers.measure import disk, forget_peak, memory, room
from experiments.peers.trained import SIZES, batch, build_model

# Module and class, then modules that are imported before memory is first measured.
SIDES = {
    "ours": ("ours", "Ours", ("sluiceway",)),
    "theirs": ("theirs", "Theirs", ("deepspeed",)),
    "fsdp2": ("native", "Sharded", ("torch.distributed.fsdp",)),
    "native": ("native", "Native", ()),
    "none": ("native", "Forgotten", ()),
}


def _tell(out: TextIO, event: str, **fields: object) -> None:
    out.write(json.dumps({"event": event, **fields}) + "\n")
    out.flush()


def _only_events_on_stdout() -> TextIO:
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return events


def _steps(args: argparse.Namespace, side: object, out: TextIO, start: int) -> None:
    """Train and report every step; save at the requested steps."""
    for step in range(start, args.steps):
        if step == args.warmup:
            side.settle()
            forget_peak()
            _tell(out, "warm", at=time.monotonic(), **disk(), **memory())
        loss = side.step(batch(step))
        _tell(out, "step", step=step, loss=loss, at=time.monotonic(), **memory())
        if args.save_every and (step + 1) % args.save_every == 0:
            before = disk()["written"]
            began = time.monotonic()
            side.save()
            seconds = time.monotonic() - began
            _tell(out, "saved", step=step, seconds=seconds, written=disk()["written"] - before)
    side.settle()


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Build, train, and report."""
    torch.set_num_threads(args.threads)
    module, name, early = SIDES[args.side]
    if args.side == "theirs":
        os.environ.update(importlib.import_module("experiments.peers.theirs").ENVIRONMENT)
    for library in (*early, "torch.optim", "torch._dynamo"):
        importlib.import_module(library)
    model = build_model(args.size)
    if args.recompute:
        model.train().gradient_checkpointing_enable()
    parameters = sum(p.numel() for p in model.parameters())
    batch(0)
    forget_peak()
    before = memory()
    made = time.monotonic()
    made_by = importlib.import_module(f"experiments.peers.{module}")
    side = getattr(made_by, name)(model, args.folder, args.tuning)
    start = side.resume() if args.resume else 0
    seconds = time.monotonic() - made
    _tell(out, "ready", parameters=parameters, start=start, before=before["resident"],
          seconds=seconds, **memory())  # fmt: skip
    _steps(args, side, out, start)
    _tell(out, "done", at=time.monotonic(), **disk(), **memory(), room=room(args.folder),
          buffers=side.buffer_bytes(), weights=side.weights_hash())  # fmt: skip


def main() -> None:
    """Parse, run, and exit at once, since everything to measure has happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=2, help="first steps, not counted")
    parser.add_argument("--folder", type=Path, required=True, help="on the disk to use")
    parser.add_argument("--tuning", type=json.loads, default={}, help="JSON settings of the side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--recompute", action="store_true", help="recompute each block")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    out = _only_events_on_stdout()
    run(args, out)
    out.close()
    os._exit(0)


if __name__ == "__main__":
    main()
