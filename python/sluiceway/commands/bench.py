"""`sluiceway bench`: measures this machine, and compares kernels and training steps with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sluiceway.base.columns import columns
from sluiceway.base.interrupt import Interrupt
from sluiceway.base.json_text import finite
from sluiceway.base.meter import meter
from sluiceway.base.sizes import format_bytes
from sluiceway.commands.kernel_bench import bench_kernels, describe_kernels
from sluiceway.config.schema import Config
from sluiceway.engines import native_twin
from sluiceway.errors import Unavailable
from sluiceway.machine import disk
from sluiceway.machine.fio import fio_rates
from sluiceway.machine.roofs import link_seconds
from sluiceway.machine.storage import check_folder
from sluiceway.run.checkpoint import Position
from sluiceway.run.loop import Loop
from sluiceway.run.planning import planned
from sluiceway.run.session import Inputs, open_context, read_inputs
from sluiceway.run.step_figures import step_figures

_LINK_SIZES = (64 << 10, 1 << 20, 16 << 20, 128 << 20)  # Bytes.
_MIXES = ("read", "write", "both")  # Rates of a disk.


def measure(
    what: str | None, config: Config | None, steps: int, path: Path, interrupt: Interrupt
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield name, figures and table of `what`, or of all measurements that need no config."""
    ways = {
        "link": (bench_link, describe_link),
        "disk": (lambda: bench_disk(path), describe_disk),
        "kernels": (bench_kernels, describe_kernels),
        "step": (lambda: bench_step(config, steps, interrupt), describe_step),
    }
    for name in [what] if what else ["link", "disk", "kernels"]:
        run, describe = ways[name]
        found = run()
        yield name, found, describe(found)


def _device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def bench_link() -> dict[str, Any]:
    """Measure copies of several sizes over the link: seconds, and GB/s of payload each way."""
    device = _device()
    rows = []
    for size in _LINK_SIZES:
        seconds = link_seconds(size, device)
        rates = {f"{way}_gbps": size / s / 1e9 for way, s in seconds.items()}
        rows.append({"bytes": size, "seconds": seconds, **rates})
    name = "host" if device.type == "cpu" else str(device)
    return {"device": name, "threads": torch.get_num_threads(), "rows": rows}


def describe_link(found: dict[str, Any]) -> str:
    """Return the table for people."""
    what = (
        f"memory copy with {found['threads']} threads: the link of the host device, unthrottled"
        if found["device"] == "host"
        else f"{found['device']}, page-locked memory"
    )
    rows = [["size", "d2h GB/s", "h2d GB/s", "us"]]
    for row in found["rows"]:
        rates = [f"{row[f'{way}_gbps']:.2f}" for way in ("d2h", "h2d")]
        rows.append([format_bytes(row["bytes"]), *rates, f"{1e6 * row['seconds']['d2h']:.1f}"])
    return f"link: {what}\n{columns(rows, '0123')}"


def bench_step(config: Config, steps: int, interrupt: Interrupt) -> dict[str, Any]:
    """Train `steps` with plain AdamW, then with the config's engine; nothing is saved.

    The first three steps of each are not timed.
    """
    config = shortened(config, steps)
    if config.engine.awaits_plan:
        config = planned(config, Path(), quiet=True)
    inputs = read_inputs(config, Path(config.model.path))
    twin, kind = native_twin(config), config.engine.kind
    found = {twin.engine.kind: train_steps(twin, inputs, interrupt)}
    if kind not in found:
        found[kind] = train_steps(config, inputs, interrupt)
        native, mine = (found[k]["median_step_seconds"] for k in (twin.engine.kind, kind))
        found[kind]["native_ratio"] = mine / native
    link = config.device.link.model_dump() if config.device.link else None
    rows = [{"engine": kind, **figures} for kind, figures in found.items()]
    return finite(
        {"model": config.model.path, "steps": steps, "link": link, "device": inputs.placement.name,
         "rows": rows}
    )  # fmt: skip


def shortened(config: Config, steps: int) -> Config:
    """Return the config of a run of some steps that neither evaluates nor saves."""
    train = {"steps": steps, "warmup_steps": 0, "eval_every": 0, "save_every": 0}
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"eval": []}),
            "train": config.train.model_copy(update=train),
            "compare": None,
        }
    )


def train_steps(config: Config, inputs: Inputs, interrupt: Interrupt) -> dict[str, Any]:
    """Train the steps of a config, and return their figures; nothing is saved."""
    context = open_context(config, inputs, Path(config.model.path), None)
    lines: list[dict[str, Any]] = []

    def watch(line: dict[str, Any]) -> None:
        lines.append(line)
        advance(1)

    with (
        contextlib.closing(context.engine),
        meter(config.engine.kind, config.train.steps) as advance,
    ):
        Loop(config, context, Position(), interrupt, watch, None).run()
    return step_figures(lines)


def describe_step(found: dict[str, Any]) -> str:
    """Return the table for people."""
    rows = [["engine", "s/step", "x native", "stall", "d2h", "h2d", "device", "tokens/s"]]
    for row in found["rows"]:
        ratio, traffic = row.get("native_ratio"), row["bytes_per_step"]
        rows.append(
            [
                row["engine"],
                f"{row['median_step_seconds']:.4f}",
                f"{ratio:.3f}" if ratio else "-",
                f"{100 * row['stall_share']:.1f}%",
                format_bytes(traffic["d2h"]),
                format_bytes(traffic["h2d"]),
                format_bytes(row["peak_bytes"]["device"]),
                f"{row['tokens_per_second']:.0f}",
            ]
        )
    link = found["link"]
    at = f"link {link['d2h_gbps']}/{link['h2d_gbps']} GB/s" if link else "link not throttled"
    head = f"step: {found['model']}, {found['steps']} steps each on {found['device']}, {at}"
    return f"{head}\n{columns(rows, '1234567')}"


def bench_disk(folder: Path, size: int = 512 << 20, seconds: float = 0.7) -> dict[str, Any]:
    """Measure the disk that holds `folder`: our rates through each interface, and those of fio.

    A file of `size` bytes is written and read, each figure in `seconds`.
    """
    check_folder(folder)
    direct = disk.has_direct(folder)
    rows: list[dict[str, Any]] = []
    with disk.nameless_file(folder, size) as path:
        for io in ("uring", "posix"):
            try:
                rows.append({"name": io, **disk.file_rates(path, _MIXES, io, size, seconds)})
            except Unavailable as error:
                rows.append({"name": io, "note": f"not run: {error}"})
        engine = "io_uring" if "read" in rows[0] else "libaio"
        try:
            figures = fio_rates(
                path, _MIXES, engine, size, disk.BLOCK_BYTES, disk.DEPTH, direct, seconds
            )
            note = "with memory of its own, which asks for no huge pages"
            rows.append({"name": f"fio, {engine}", **figures, "note": note})
        except Unavailable as error:
            rows.append({"name": "fio", "note": f"not run: {error}"})
    return {
        "path": str(folder),
        "bytes": size,
        "block_bytes": disk.BLOCK_BYTES,
        "depth": disk.DEPTH,
        "direct": direct,
        "rows": rows,
    }


def describe_disk(found: dict[str, Any]) -> str:
    """Return the table for people."""
    way = "past the page cache" if found["direct"] else "through the page cache, then synced"
    block, rows = format_bytes(found["block_bytes"]), [["", "read", "write", "both", "cpu s/GB"]]
    head = f"disk: {found['path']}, {found['depth']} requests of {block} at once, {way}; GB/s"
    notes = []
    for row in found["rows"]:
        if "read" in row:
            rates = [f"{row[mix]['gbps']:.2f}" for mix in _MIXES]
            rows.append([row["name"], *rates, f"{row['both']['processor_s_per_gb']:.4f}"])
        if row.get("note"):
            notes.append(f"{row['name']}: {row['note']}")
        if row.get("huge_bytes", 0) < row.get("memory_bytes", 0):
            huge, memory = format_bytes(row["huge_bytes"]), format_bytes(row["memory_bytes"])
            notes.append(f"{row['name']}: {huge} of {memory} in huge pages")
    return "\n".join([head, columns(rows, "1234"), *notes])
