"""Best rates that this machine can reach; benchmarks compare their own rates with them."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def best_seconds(work: Callable[[], object], budget: float = 0.3) -> float:
    """Time `work` repeatedly for `budget` seconds, after a warm-up call; return the shortest."""
    work()
    best, deadline = float("inf"), time.perf_counter() + budget
    while best == float("inf") or time.perf_counter() < deadline:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


_IN_A_ROW = 10


def best_seconds_on(device: torch.device, work: Callable[[], object], budget: float = 0.3) -> float:
    """Time work like `best_seconds`; on a GPU, time several calls up to one synchronize."""
    if device.type != "cuda":
        return best_seconds(work, budget)

    def row() -> None:
        for _ in range(_IN_A_ROW):
            work()
        torch.cuda.synchronize(device)

    return best_seconds(row, budget) / _IN_A_ROW


def link_seconds(size: int, device: torch.device) -> dict[str, float]:
    """Seconds to copy `size` bytes over the link, each way.

    A GPU's link is PCIe, from and to page-locked memory. The link of the host device is a copy
    within memory, so both ways take the same time.
    """
    if device.type != "cuda":
        source = torch.zeros(size, dtype=torch.uint8).random_()
        target = torch.empty_like(source)
        seconds = best_seconds(lambda: target.copy_(source))
        return {"d2h": seconds, "h2d": seconds}
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)

    def copied(target: torch.Tensor, source: torch.Tensor) -> float:
        def work() -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)

        return best_seconds(work)

    return {"d2h": copied(host, there), "h2d": copied(there, host)}
