"""Compare the speed of the demo's step at NEW and OLD in paired turns, with an interval.

    python -m experiments.same_bits.paced_turns OLD NEW [--turns 10] [--out FILE.json] [--keep DIR]

A turn is one process of each commit. Both train the demo's default over a link of fixed rate, and
one runs while the other is stopped. They alternate in slices of two seconds, and the one that
begins alternates too, so a disturbance hits both alike. The turn's figure is the mean of log(new /
old) over its slices. Two processes of one commit differ by a percent, because their memory lies
elsewhere; turns average that out. The interval is Student's, over the turns. Exits with 1 if the
whole interval is above 1.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from experiments.same_bits.checkouts import Side, both_sides, machine
from experiments.same_bits.paced_run import PacedRun

CONFIDENCE = 0.90
SLICE_SECONDS = 2.0


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's distribution above a half, by Simpson's rule and bisection."""
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    scale = math.exp(log_scale) / math.sqrt(freedom * math.pi)

    def beyond_middle(t: float, pieces: int = 2000) -> float:
        density = [(1 + (t * i / pieces) ** 2 / freedom) ** (-(freedom + 1) / 2)
                   for i in range(pieces + 1)]  # fmt: skip
        inner = 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2])
        return scale * t / pieces / 3 * (density[0] + inner + density[-1])

    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond_middle(middle) < probability - 0.5 else (low, middle)
    return low


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return low end, geometric mean and high end of the interval that the paired ratios give."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half = t_quantile(0.5 + CONFIDENCE / 2, len(logs) - 1) * error
    return math.exp(mean - half), math.exp(mean), math.exp(mean + half)


def take_turns(args: argparse.Namespace, folder: Path, old: Side, new: Side) -> list[dict]:
    """Take every turn; return the seconds of a step on both sides, and their ratio."""
    turns = []
    for number in range(args.turns):
        pair = PacedRun(old, folder, args.link_gbps), PacedRun(new, folder, args.link_gbps)
        first, second = pair if number % 2 == 0 else reversed(pair)
        with first, second:
            slices = take_slices(*pair, args.slices, begins=number % 2)
        old_seconds, new_seconds = (statistics.median(side) for side in zip(*slices, strict=True))
        ratio = math.exp(statistics.fmean(math.log(b / a) for a, b in slices))
        turns.append({"old": old_seconds, "new": new_seconds, "ratio": ratio})
        print(f"turn {number + 1} of {args.turns}: {json.dumps(turns[-1])}", flush=True)
    return turns


def take_slices(old: PacedRun, new: PacedRun, count: int, begins: int) -> list[tuple[float, float]]:
    """Return median seconds of a step in each slice of both; the side that begins alternates."""
    slices = []
    for number in range(count):
        order = (old, new) if (number + begins) % 2 == 0 else (new, old)
        seconds = {run: statistics.median(run.steps_in(SLICE_SECONDS)) for run in order}
        slices.append((seconds[old], seconds[new]))
    return slices


def main() -> None:
    """Build, time, judge; print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", help="a commit")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--slices", type=int, default=6, help="slices of each commit in a turn")
    parser.add_argument("--link-gbps", type=float, default=0.042)
    parser.add_argument("--out", type=Path, help="JSON file for the turns")
    parser.add_argument("--keep", type=Path, help="folder for both builds, kept")
    args = parser.parse_args()
    if args.turns < 2:
        parser.error(f"--turns {args.turns}: expected 2 or more, as an interval needs a spread")
    with both_sides(args.old, args.new, args.keep) as (folder, old, new):
        turns = take_turns(args, folder / "turns", old, new)
    low, mean, high = interval([turn["ratio"] for turn in turns])
    slower = low > 1
    if args.out is not None:
        settings: dict[str, Any] = {"slices": args.slices, "slice_seconds": SLICE_SECONDS,
                                    "link_gbps": args.link_gbps}  # fmt: skip
        result = {"old": old.described(), "new": new.described(), "machine": machine(), **settings,
                  "confidence": CONFIDENCE, "ratio": {"low": low, "mean": mean, "high": high},
                  "slower": slower, "turns": turns}  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    verdict = "NEW is slower" if slower else "the interval includes 1 or is below it"
    print(f"new / old: {mean:.3f}, 90 % interval {low:.3f} to {high:.3f}; {verdict}")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
