"""Measure the host memory and seconds of steps whose AdamW states are in host memory.

    python -m experiments.offload.host_memory                  # writes host_memory.json
    python -m experiments.offload.host_memory --beside DRIVER  # and measures another build
    python -m experiments.offload.host_memory --table          # prints it for the README

Each case is a process of `build/cpu/experiments/offload/traffic_driver`: bf16 weights and
gradients, clipped, one backward a step. Cases take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from experiments.harness import read_rows, write_rows
from experiments.offload.traffic import CLIPS, DRIVER, STEPS, run_of

RESULTS = Path(__file__).with_name("host_memory.json")
MILLIONS = {"spill": (50, 200, 800), "speculative": (50, 200), "spill, before": (50, 200)}
TIMES = 3  # Every case.


def measured(way: str, millions: int, driver: Path) -> dict:
    """Run one case."""
    policy = way.split(",")[0]
    words = ["-", millions * 10**6, STEPS, 1, "identity", CLIPS, policy, "gradient", "all"]
    return {"way": way, "run": run_of(driver, *words)}


def table(rows: list[dict]) -> str:
    """Format the rows as Markdown, the turns of a case in one line."""
    lines = ["| | parameters | host, B/p | ring, MiB | process, B/p | s a step |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    cases: dict[tuple[str, int], list[dict]] = {}
    for row in rows:
        cases.setdefault((row["way"], row["run"]["parameters"]), []).append(row["run"])
    for (way, parameters), runs in cases.items():
        process = max(run["process"] for run in runs)
        seconds = statistics.median(second for run in runs for second in run["seconds"][1:])
        lines.append(
            f"| {way} | {parameters / 1e6:,.0f} M | {runs[0]['host'] / parameters:.2f} "
            f"| {runs[0]['pinned'] / 2**20:.0f} | {process / parameters:.2f} | {seconds:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all cases in turns, or show the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, metavar="DRIVER", help="driver of another build")
    parser.add_argument("--table", action="store_true", help="print host_memory.json")
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(RESULTS)))
    command = "python -m experiments.offload.host_memory" + " --beside DRIVER" * bool(args.beside)
    rows = []
    for _ in range(TIMES):
        for way, sizes in MILLIONS.items():
            driver = args.beside if way.endswith("before") else DRIVER
            for millions in sizes if driver else ():
                rows.append(measured(way, millions, driver))
                print(json.dumps(rows[-1]), flush=True)
                write_rows(RESULTS, rows, command=command)
    return print(table(rows))


if __name__ == "__main__":
    main()
