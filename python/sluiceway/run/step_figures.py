"""Sums up the steps of a run; without torch, so that a report starts at once.

A run has diverged if it was stopped after `train.max_skipped` skipped steps in a row, or if it
reached its end and one of these holds for its last step:

    its loss is not finite, or it was skipped because its gradient is not
    the held-out loss after it is not finite

A skipped step of a run with a loss scale is no divergence, as skips adjust the scale.
"""

from __future__ import annotations

import statistics
from typing import Any

from sluiceway.errors import Error
from sluiceway.machine.wear import tb_per_day

_WARMUP = 3  # The first steps allocate; they are in no median.


def step_figures(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return times, bytes and peaks of a run, computed from its lines of metrics."""
    steps = [line for line in lines if line.get("seconds")]
    if not steps:
        return {}
    timed = steps[_WARMUP:] or steps
    seconds = sum(line["seconds"] for line in timed)
    links = timed[-1].get("bytes") or {}
    tiers = timed[-1].get("peak_bytes") or {}
    return {
        "final_loss": steps[-1].get("loss"),
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
        **_disk_figures(steps),
    }


def _disk_figures(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes that all steps read and wrote on disk, and the rate of writing."""
    read, written, consolidated = (
        sum((line.get("bytes") or {}).get(link) or 0 for line in steps)
        for link in ("disk_read", "disk_written", "consolidated")
    )
    if not (read or written):
        return {}
    daily = tb_per_day(written + consolidated, sum(line["seconds"] for line in steps))
    figures = {"read_bytes": read, "written_bytes": written, "written_tb_per_day": daily}
    return {"disk": figures | ({"consolidated_bytes": consolidated} if consolidated else {})}


class Diverged(Error):  # noqa: N818 - as other errors of the package.
    """The numbers of a run are no longer finite."""


def check_converged(lines: list[dict[str, Any]]) -> None:
    """Raise Diverged if a run has diverged, so that it is not called done.

    Parameters
    ----------
    lines : list of dict
        Lines of metrics.jsonl; numbers that are not finite are None.

    Raises
    ------
    Diverged
        The text names the step, and the last step that changed the weights.
    """
    steps = [line for line in lines if "skipped" in line]
    if not steps:
        return
    last = steps[-1]
    made = next((line["step"] for line in reversed(steps) if not line["skipped"]), None)
    in_row = last["step"] - (made or 0) if last["skipped"] else 0
    if last["loss"] is None:
        what = "its loss is not finite"
    elif in_row > 1 or (in_row and last["loss_scale"] is None):
        what = "its gradient is not finite"
    elif "eval_loss" in last and last["eval_loss"] is None:
        what = "the held-out loss after it is not finite"
    else:
        return
    weights = f"the weights are those of step {made}" if made else "no step changed a weight"
    skipped = f", the last {in_row} of the run were skipped: {weights}" if in_row else ""
    raise Diverged(
        f"step {last['step']}: the run ended here and has diverged, {what}{skipped}; expected "
        "finite numbers; try a smaller train.lr, or bf16 in place of fp16"
    )
