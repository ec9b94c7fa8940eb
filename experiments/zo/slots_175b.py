"""Train layers of OPT-175B at their true size from a drive, and compare with the plan for all 96.

    python -m experiments.zo.slots_175b FOLDER            # 24 GiB in FOLDER; into slots_175b.json
    python -m experiments.zo.slots_175b FOLDER --small    # a small shape for seconds, no file
    python -m experiments.zo.slots_175b --table           # prints the table of README.md

The run is `configs/opt_175b_zo.yaml` with its budget on the host device, but with fewer blocks,
random weights, and no evaluations. The device's memory depends on the largest layers and on the
sequence, not on the number of blocks. The script removes everything that it makes in FOLDER.

Exit status: 0, or 1 if something differs from the plan.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from sluiceway.base.sizes import format_bytes
from sluiceway.commands.plan import make_plan
from sluiceway.config.file import load_config
from sluiceway.config.schema import Config
from sluiceway.machine.footprint import peak_resident_bytes
from sluiceway.machine.placement import choose_placement, denormals
from sluiceway.model.folder import WEIGHTS_FILE
from sluiceway.model.skeleton import build_skeleton
from sluiceway.model.weight_stream import save_streamed
from sluiceway.run.loop import RunContext
from sluiceway.run.session import Inputs, open_context
from sluiceway.text.batches import Batch

from experiments.harness import REPOSITORY, write_rows
from experiments.same_bits.checkouts import machine

RESULTS = Path(__file__).with_name("slots_175b.json")
CONFIG = REPOSITORY / "configs/opt_175b_zo.yaml"
SHAPE = REPOSITORY / "configs/shapes/opt_175b"
_DEVIATION = 0.02
_SMALL_TENSORS = 1 << 20  # Bytes of a step that no plan counts, such as states of generators.
_SMALL = {"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 256, "num_attention_heads": 4,
          "vocab_size": 509, "num_hidden_layers": 6, "max_position_embeddings": 64}  # fmt: skip


def config_of(model: Path, store: Path, sequence: int) -> Config:
    """Return the config with another model, and with options that one host can run."""
    overrides = [
        f"model.path={model}", f"store.path={store}", f"data.sequence_length={sequence}",
        "data.eval=[]", "train.eval_every=0", "device.name=host", "device.link=null",
    ]  # fmt: skip
    return load_config(CONFIG, overrides)


def write_shape(folder: Path, layers: int | None, small: bool) -> Path:
    """Write the shape's config.json with `layers` blocks; None: all of them."""
    folder.mkdir()
    shape = json.loads((SHAPE / "config.json").read_text()) | (_SMALL if small else {})
    shape["num_hidden_layers"] = layers or shape["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


def random_weight(like: torch.Tensor) -> torch.Tensor:
    """Draw a random matrix; norms and biases, which do not matter here, are ones."""
    if like.dim() < 2:
        return torch.ones(like.shape, dtype=like.dtype)
    most = math.sqrt(3) * _DEVIATION
    return torch.empty(like.shape, dtype=like.dtype).uniform_(-most, most)


def write_model(folder: Path) -> None:
    """Write random weights of the shape to a folder, one after the other."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = build_skeleton(str(folder), torch.bfloat16)
    save_streamed(model, folder, random_weight)


def kernel_bytes() -> dict[str, int]:
    """The kernel's counts of this process's reads and writes of drives."""
    lines = Path("/proc/self/io").read_text().splitlines()
    counts = {name: int(count) for name, count in (line.split(": ") for line in lines)}
    return {"kernel_read": counts["read_bytes"], "kernel_written": counts["write_bytes"]}


def batch_of(number: int, tokens: int, vocabulary: int) -> Batch:
    """Draw random tokens."""
    draw = torch.Generator().manual_seed(number)
    ids = torch.randint(2, vocabulary, (1, tokens), generator=draw)
    return Batch({"input_ids": ids, "labels": ids}, tokens, tokens - 1)


def train(config: Config, steps: int) -> list[dict[str, Any]]:
    """Return a row for each step. Peaks of torch are those of the step, others since the start."""
    placement, folder = choose_placement(config), Path(config.model.path)
    with denormals(config, placement):
        context = open_context(config, Inputs(placement, None, None, {}), folder, None)
        (folder / WEIGHTS_FILE).unlink()  # The store has a copy; the drive may lack room for two.
        try:
            return [step_row(context, config, number) for number in range(steps)]
        finally:
            context.engine.close()


def step_row(context: RunContext, config: Config, number: int) -> dict[str, Any]:
    """Make a step, and return its measurements."""
    engine, device = context.engine, context.engine.optimizer.device
    vocabulary = engine.model.config.vocab_size
    gc.collect()
    device.reset_peak()
    before, began = kernel_bytes(), time.perf_counter()
    update = engine.update([batch_of(number, config.data.sequence_length, vocabulary)],
                           context.timeline)  # fmt: skip
    seconds, after, told = time.perf_counter() - began, kernel_bytes(), engine.metrics()
    row = {
        "step": number + 1, "loss": update.loss, "g": told["zo"]["g"], "seconds": seconds,
        "bytes": told["bytes"], "peak_bytes": told["peak_bytes"],
        "forwards": device.peak_bytes(), "resident_set": peak_resident_bytes(),
        **{name: after[name] - before[name] for name in before},
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def matrices(folder: Path) -> tuple[int, int]:
    """Return bytes that a pass streams by the shape's formula, and those of norms and biases."""
    shape = json.loads((folder / "config.json").read_text())
    wide, ffn, layers = shape["hidden_size"], shape["ffn_dim"], shape["num_hidden_layers"]
    block = 4 * wide * wide + 2 * wide * ffn
    positions = shape["max_position_embeddings"] + 2  # OPT has two positions more.
    # The embedding also serves as the head.
    streamed = layers * block + (2 * shape["vocab_size"] + positions) * wide
    # A block has two norms and the biases of six layers; the last norm comes on top.
    vectors = layers * (4 * wide + 4 * wide + ffn + wide) + 2 * wide
    return 2 * streamed, 2 * vectors


def compared(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the measurements with both plans, and check them."""
    last, here, full = run["rows"][-1], run["planned"], run["planned_full"]
    parts, tiers, links = here["device_parts"], here["peak_bytes"], here["bytes_per_step"]
    slots = last["peak_bytes"]["device"] - last["forwards"] - run["vector_bytes"]
    # The end of a step reads ahead for the next one, at most as far as slots go.
    later = run["rows"][1:]
    written = max(r["kernel_written"] for r in later)
    ahead = tiers["pinned"] + parts["slots"]

    def row(
        what: str, measured: float, planned: float, whole: float | None, holds: bool
    ) -> dict[str, Any]:
        return {"what": what, "measured": measured, "planned": planned, "full": whole,
                "holds": bool(holds)}  # fmt: skip

    def link(what: str, name: str, counts: list[int]) -> dict[str, Any]:
        measured = sum(counts) / len(counts)
        return row(what, measured, links[name], full["bytes_per_step"][name],
                   abs(sum(counts) - len(counts) * links[name]) <= ahead)  # fmt: skip

    full_parts, full_tiers = full["device_parts"], full["peak_bytes"]
    return [
        row("device: slots", slots, parts["slots"], full_parts["slots"],
            slots == parts["slots"] == full_parts["slots"]),
        row("device: norms and biases", run["vector_bytes"], parts["resident"],
            full_parts["resident"], run["vector_bytes"] == parts["resident"]),
        row("device: forwards", last["forwards"], parts["forwards"], full_parts["forwards"],
            last["forwards"] <= parts["forwards"] + _SMALL_TENSORS),
        row("page-locked", last["peak_bytes"]["pinned"], tiers["pinned"], full_tiers["pinned"],
            last["peak_bytes"]["pinned"] == tiers["pinned"]),
        row("host", last["peak_bytes"]["host"], tiers["host"], full_tiers["host"],
            last["peak_bytes"]["host"] <= tiers["host"]),
        row("over the link by the shape's formula", run["streamed_bytes"], links["h2d"],
            full["bytes_per_step"]["h2d"], run["streamed_bytes"] == links["h2d"]),
        link("over the link, a step", "h2d", [r["bytes"]["h2d"] for r in later]),
        link("read, a step", "disk_read", [r["bytes"]["disk_read"] for r in later]),
        # A small run may have no drive, or share the process with others that use it.
        *([] if run["small"] else [
            link("read, a step, by the kernel", "disk_read", [r["kernel_read"] for r in later]),
            row("written, a step, by the kernel", written, 0, 0, written < 1 << 20),
        ]),
    ]  # fmt: skip


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Make the model, train it, and remove it."""
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="slots_175b_") as made:
        folder = Path(made)
        some = write_shape(folder / "model", args.blocks, args.small)
        every = write_shape(folder / "every", None, args.small)
        config = config_of(some, folder / "store", args.sequence)
        planned = make_plan(config).figures
        full = make_plan(config_of(every, folder / "store", args.sequence)).figures
        streamed, vectors = matrices(some)
        check_room(args.folder, planned["peak_bytes"]["disk"] + streamed + vectors)
        write_model(some)
        rows = train(config, args.steps)
    kept = ("device_parts", "peak_bytes", "bytes_per_step", "ring")
    return {
        "machine": machine(), "small": args.small, "blocks": args.blocks,
        "sequence": args.sequence, "streamed_bytes": streamed, "vector_bytes": vectors,
        "planned": {key: planned[key] for key in kept},
        "planned_full": {key: full[key] for key in kept}, "rows": rows,
    }  # fmt: skip


def check_room(folder: Path, needed: int) -> None:
    """Exit if the drive has too little room."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(
            f"{folder}: {format_bytes(free)} are free, but the model and its store need "
            f"{format_bytes(needed)}; give another folder, or fewer --blocks"
        )


def table(run: dict[str, Any], found: list[dict[str, Any]]) -> str:
    """Table of the measurements and both plans."""
    lines = [f"| | measured, {run['blocks']} blocks | planned for them | planned for all | |"]
    lines.append("|---" * 5 + "|")
    for row in found:
        sizes = (f"{row[key]:,.0f}" for key in ("measured", "planned", "full"))
        verdict = "as planned" if row["holds"] else "not as planned"
        lines.append(f"| {row['what']} | {' | '.join(sizes)} | {verdict} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="folder on the drive to use")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--small", action="store_true", help="try a small shape")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3, help="at least two")
    args = parser.parse_args(arguments)
    if args.small:
        args.sequence = 32
    if args.table:
        run = json.loads(args.out.read_text())
    elif args.folder is None or args.steps < 2:
        parser.error("give FOLDER, and --steps of 2 or more, as step 1 loads resident weights")
    else:
        run = measure(args)
        if not args.small:
            write_rows(args.out, **run)
    found = compared(run)
    print(table(run, found))
    finite = all(math.isfinite(row["loss"]) for row in run["rows"])
    return 0 if finite and all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
