"""Measure the offload engine's disk and link bytes per step against the formulas of docs/store.md.

    python -m experiments.offload.traffic FOLDER        # writes traffic.json, case by case
    python -m experiments.offload.traffic --table       # prints it for the README

Each case is a process of `build/cpu/experiments/offload/traffic_driver`. Byte counts come from our
counters and from the kernel's (/proc/self/io). FOLDER is a folder with 2 GiB of room on the disk to
measure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from experiments.harness import REPOSITORY, read_rows, write_rows
from experiments.offload.run import per_parameter

DRIVER = REPOSITORY / "build/cpu/experiments/offload/traffic_driver"
RESULTS = Path(__file__).with_name("traffic.json")
PARAMETERS, STEPS = 50_000_000, 5
CLIPS, NEVER_CLIPS = 1e-3, 1e6  # Value of max_norm.


class Case(NamedTuple):
    """A case to run, with the expected bytes for each parameter and step."""

    policy: str
    micro_batches: int
    codec: str
    spill: str
    max_norm: float
    park: str
    disk: float
    d2h: float


CASES = [
    Case("spill", 1, "identity", "gradient", 0, "none", 28, 2),
    Case("spill", 4, "identity", "gradient", 0, "none", 40, 8),
    Case("spill", 4, "identity", "gradient", CLIPS, "none", 48, 8),
    Case("spill", 1, "block_random", "gradient", 0, "none", 28, 0.5),
    Case("spill", 4, "block_random", "gradient", CLIPS, "none", 28, 0.5),
    Case("spill", 4, "block_random", "core", 0, "none", 24, 1),
    Case("spill", 4, "block_random", "core", CLIPS, "none", 24, 1),
    Case("speculative", 1, "identity", "gradient", 0, "all", 24, 2),
    Case("speculative", 1, "identity", "gradient", 0, "none", 28, 2),
    Case("speculative", 1, "identity", "gradient", NEVER_CLIPS, "all", 26, 2),
    Case("speculative", 4, "block_random", "core", 0, "all", 24, 0.5),
    Case("speculative", 4, "block_random", "core", NEVER_CLIPS, "all", 24, 0.5),
]


def measured(case: Case, folder: Path) -> dict:
    """Measure and check one case."""
    words = [PARAMETERS, STEPS, case.micro_batches, case.codec, case.max_norm, case.policy,
             case.spill, case.park]  # fmt: skip
    return {**case._asdict(), "run": run_of(DRIVER, folder, *words)}


def run_of(driver: Path, *words: object) -> dict:
    """Return what a driver prints for these arguments."""
    command = [str(word) for word in (driver, *words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def table(rows: list[dict]) -> str:
    """Format the rows as Markdown."""
    lines = ["| policy | M | codec | between backward and update | max_norm | weights parked "
             "| disk, B/p | by the kernel | formula | d2h, B/p | formula | s a step |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    clips = {0: "none", CLIPS: "clips each", NEVER_CLIPS: "clips none"}
    for row in rows:
        run = row["run"]
        lines.append(
            f"| {row['policy']} | {row['micro_batches']} | {row['codec']} | {row['spill']} "
            f"| {clips[row['max_norm']]} | {row['park']} "
            f"| {per_parameter(run, 'read', 'written'):.3f} "
            f"| {per_parameter(run, 'kernel_read', 'kernel_written'):.3f} | {row['disk']:g} "
            f"| {per_parameter(run, 'd2h'):.3f} | {row['d2h']:g} "
            f"| {sorted(run['seconds'])[len(run['seconds']) // 2]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all cases, or show the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="folder on the disk to use")
    parser.add_argument("--table", action="store_true", help="print traffic.json")
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(RESULTS)))
    if args.folder is None:
        parser.error("FOLDER is missing; name a folder on the disk to use")
    rows = []
    for case in CASES:
        rows.append(measured(case, args.folder))
        print(json.dumps(rows[-1]), flush=True)
        write_rows(RESULTS, rows, command="python -m experiments.offload.traffic FOLDER")
    return print(table(rows))


if __name__ == "__main__":
    main()
