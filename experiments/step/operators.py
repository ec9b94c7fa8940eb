"""Time of a step on the host device: seconds by operator, and by range of the engine.

    python -m experiments.step.operators --out FILE [--ways WAY ...]    # a block of --shape

Operators are torch's. Their seconds are their own time without the operators that they call, on the
threads that compute. Ranges are the engine's lanes, which run beside the operators; a step waits
for a lane only where `stall` says so.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from sluiceway.run.summary import machine
from torch.profiler import ProfilerActivity, profile

from experiments.harness import write_rows
from experiments.step.block_models import SHAPES, Case
from experiments.step.step_turn import clear, train_step
from experiments.step.step_ways import NATIVE, WAYS, make_optimizer

FEWEST_SECONDS = 1e-3  # Seconds of a step; shorter entries count as "other".


def operators_of(case: Case, way: str, gbps: float | None, steps: int) -> dict[str, dict]:
    """Return seconds a step of each operator and each range; the first step is not counted."""
    model = case.build(1)
    ids = case.batch_on(torch.device("cpu"))
    with closing(make_optimizer(model, WAYS[way], gbps, "host")) as optimizer:
        if way != NATIVE:
            optimizer.engine.trace.enable(True)
        train_step(model, optimizer, ids)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(steps):
                train_step(model, optimizer, ids)
        optimizer.synchronize()
        operators = Counter()
        for event in profiled.key_averages():
            operators[event.key] += event.self_cpu_time_total / 1e6 / steps
        return {"operators": longest(operators), "ranges": ranges_of(optimizer, way, steps + 1)}


def ranges_of(optimizer: Any, way: str, steps: int) -> dict[str, float]:
    """Return seconds a step of the engine's ranges, by name; native has none."""
    if way == NATIVE:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        optimizer.engine.trace.write_json(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    ranges = Counter()
    for event in events:
        if event["ph"] == "X":
            ranges[event["name"].split()[0]] += event["dur"] / 1e6 / steps
    return longest(ranges)


def longest(seconds: Counter[str]) -> dict[str, float]:
    """Sort times in falling order, and add the short ones up."""
    named = {name: took for name, took in seconds.most_common() if took >= FEWEST_SECONDS}
    return {**named, "other": seconds.total() - sum(named.values())}


def main() -> None:
    """Profile every way, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a step")
    parser.add_argument("--sequence", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--gbps", type=float, help="link rate; not throttled without it")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS),
                        default=[NATIVE, "Sluiceway, fused"])  # fmt: skip
    args = parser.parse_args()
    case = Case(args.shape, args.tokens, False, args.sequence, torch.bfloat16)
    rows = []
    for way in args.ways:
        rows.append({"way": way, **operators_of(case, way, args.gbps, args.steps)})
        clear(torch.device("cpu"))
        for kind in ("operators", "ranges"):
            for name, seconds in rows[-1][kind].items():
                print(f"{way}: {kind[:-1]} {name}: {seconds * 1e3:.1f} ms a step", flush=True)
        write_rows(args.out, rows, **case.key, machine=machine(), gbps=args.gbps)


if __name__ == "__main__":
    main()
