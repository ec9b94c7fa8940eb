"""What the steps of a run come to; without torch, so that a report of a run starts at once."""

from __future__ import annotations

import statistics
from typing import Any

_WARMUP = 3  # The first steps allocate; they are in no median.


def step_figures(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Times, bytes and peaks of a run from its lines of metrics."""
    steps = [line for line in lines if line.get("seconds")]
    if not steps:
        return {}
    timed = steps[_WARMUP:] or steps
    seconds = sum(line["seconds"] for line in timed)
    links = timed[-1].get("bytes") or {}
    tiers = timed[-1].get("peak_bytes") or {}
    losses = [line["loss"] for line in steps if line.get("loss") is not None]
    return {
        "final_loss": losses[-1] if losses else None,
        "median_step_seconds": statistics.median(line["seconds"] for line in timed),
        "mean_step_seconds": seconds / len(timed),
        "tokens_per_second": sum(line["tokens"] for line in timed) / seconds,
        "stall_share": sum(line.get("stall_seconds") or 0.0 for line in timed) / seconds,
        "data_share": sum(line.get("data_seconds") or 0.0 for line in timed) / seconds,
        "learn_seconds": sum(line.get("learn_seconds") or 0.0 for line in steps),
        "bytes_per_step": {
            link: statistics.median(line["bytes"].get(link, 0) for line in timed) for link in links
        },
        "peak_bytes": {
            tier: max(line["peak_bytes"].get(tier) or 0 for line in steps) for tier in tiers
        },
    }
