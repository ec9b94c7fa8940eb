"""Take one turn: run a few steps of one way, and measure them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from sluiceway.machine.footprint import DevicePeak

from experiments.step.block_models import Case
from experiments.step.driver_count import TakenPeak
from experiments.step.step_ways import WAYS, Laps, make_optimizer


def torch_device(name: str) -> torch.device:
    """Device of torch for host or cuda:N."""
    return torch.device("cpu" if name == "host" else name)


def train_step(model: torch.nn.Module, optimizer: Any, ids: torch.Tensor) -> torch.Tensor:
    """Run forward, backward and update; return the loss without waiting for it."""
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def measure(case: Case, blocks: int, way: str, gbps: float | None, args: Any) -> dict[str, Any]:
    """Return medians of a few steps, and the most that each tier held.

    A way with slow steps takes fewer of them, but at least two, to stay within `args.patience`
    seconds.
    """
    device = torch_device(args.device)
    taken, peak, laps, told = TakenPeak(device), DevicePeak(device), Laps(device), []
    with torch.device(device):
        model = case.build(blocks)
    ids, began = case.batch_on(device), time.monotonic()
    with closing(make_optimizer(model, WAYS[way], gbps, args.device)) as optimizer:
        for step in range(args.warmup + args.steps):
            laps.mark()
            train_step(model, optimizer, ids)
            told.append(optimizer.stats())
            if step < args.warmup:
                taken.look()  # Looking later would add to the times.
            elif step > args.warmup and time.monotonic() - began > args.patience:
                break
        laps.mark()
        optimizer.synchronize()
        taken.look()
        seconds = laps.seconds()[args.warmup :]
        return {
            "seconds": statistics.median(seconds),
            "mean_seconds": statistics.fmean(seconds),  # Steps differ when residuals take turns.
            "steps": len(seconds),
            **figures(told[args.warmup :], peak),
            **bytes_of_a_step(optimizer, told),
            "driver_bytes": taken.bytes if device.type == "cuda" else None,
        }


def failure(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a turn; return its results, or the reason of a failure, so that others can follow."""
    try:
        return run()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"[:400]}


def clear(device: torch.device) -> bool:
    """Release a turn's memory; return False if the device has failed, as after a bad access."""
    gc.collect()
    if device.type == "cuda":
        try:
            torch.cuda.empty_cache()
            torch.cuda.synchronize(device)
        except RuntimeError:
            return False
    return True


def figures(told: list[dict[str, Any]], peak: DevicePeak) -> dict[str, Any]:
    """Return stall and peaks from the optimizer's statistics; native has none."""
    if not told[-1]:
        return {"stall_share": 0.0, "device_bytes": peak.read(), "host_bytes": 0}
    tiers = told[-1]["peak_bytes"]
    return {
        "stall_share": sum(t["stall_seconds"] for t in told) / sum(t["seconds"] for t in told),
        "device_bytes": tiers["device"],
        "host_bytes": tiers["host"] + tiers["pinned"],
    }


def bytes_of_a_step(optimizer: Any, told: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes per step that crossed each way, including the last update."""
    links = ("d2h", "h2d")
    if not told[-1]:
        return dict.fromkeys(links, 0)
    late = optimizer.engine.take_stats()  # Bytes that crossed after the last step().
    return {
        link: (late[f"{link}_bytes"] + sum(one["bytes"][link] for one in told)) / len(told)
        for link in links
    }
