"""Measure host memory and disk bytes of AdamW steps over a store, from 50 M to 1.5 B parameters.

    python -m experiments.offload.run FOLDER            # writes results.json, case by case
    python -m experiments.offload.run --table           # prints it for the README
    python -m experiments.offload.run --plot            # writes memory.png; needs matplotlib

FOLDER is a folder on the disk to measure, with room for 24 bytes a parameter, plus 2 for each
micro-batch. Each case is a process of `build/cpu/experiments/offload/state_driver` in a memory
cgroup of 1 GiB, page cache included; a case says so if no cgroup could be made. Byte counts come
from our counters and from the kernel's (/proc/self/io).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.harness import REPOSITORY, read_rows, write_rows

DRIVER = REPOSITORY / "build/cpu/experiments/offload/state_driver"
RESULTS = Path(__file__).with_name("results.json")
PICTURE = Path(__file__).with_name("memory.png")
CAP_BYTES = 1 << 30
RING_MIB = 256
STEPS = 3
# Parameters, micro-batches, I/O backend.
CASES = [
    (50_000_000, 1, "uring"),
    (200_000_000, 1, "uring"),
    (800_000_000, 1, "uring"),
    (1_500_000_000, 1, "uring"),
    (200_000_000, 4, "uring"),
    (200_000_000, 1, "posix"),
]
EXPECTED = {1: 28, 4: 40}  # Bytes read and written for each parameter and step, from docs/store.md.


@contextmanager
def memory_cgroup() -> Iterator[Path | None]:
    """Yield a capped cgroup of version 1 or 2; None if the system allows none."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    limits = ((first, "memory.limit_in_bytes"), (second, "memory.max"))
    for root, limit in limits:
        folder = root / f"sluiceway-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(CAP_BYTES))
        except OSError:
            if folder.exists():
                folder.rmdir()
            continue
        try:
            yield folder
        finally:
            folder.rmdir()
        return
    yield None


def measured(parameters: int, micro_batches: int, io: str, folder: Path) -> dict:
    """Measure one case."""
    command = [DRIVER, folder, parameters, STEPS, micro_batches, RING_MIB, io]
    with memory_cgroup() as cap:

        def enter() -> None:
            if cap is not None:
                (cap / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(
            [str(word) for word in command], check=True, capture_output=True, preexec_fn=enter
        )
        peak = cap and next((p for p in (cap / "memory.max_usage_in_bytes", cap / "memory.peak")
                             if p.exists()), None)  # fmt: skip
        of_cgroup = int(peak.read_text()) if peak else None
    return {"cap": CAP_BYTES if cap else None, "cgroup_peak": of_cgroup, **json.loads(done.stdout)}


def per_parameter(row: dict, *keys: str) -> float:
    """Return bytes for each parameter and step."""
    return sum(row[key] for key in keys) / row["parameters"] / row["steps"]


def table(rows: list[dict]) -> str:
    """Format the rows as Markdown."""
    lines = ["| parameters | M | back end | store, GiB | resident peak, MiB | of it the ring | "
             "read + written, B/p | by the kernel | expected | s a step |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        ours = per_parameter(row, "read", "written")
        kernel = per_parameter(row, "kernel_read", "kernel_written")
        lines.append(
            f"| {row['parameters'] / 1e6:,.0f} M | {row['micro_batches']} | {row['backend']} "
            f"| {row['store_bytes'] / 2**30:.1f} | {row['resident_peak'] / 2**20:.1f} "
            f"| {row['ring_bytes'] / 2**20:.0f} | {ours:.3f} | {kernel:.3f} "
            f"| {EXPECTED[row['micro_batches']]} | {sorted(row['seconds'])[STEPS // 2]:.2f} |"
        )
    return "\n".join(lines)


def plot(rows: list[dict]) -> None:
    """Plot resident peak over parameters, with the memory that the states would take."""
    import matplotlib.pyplot as plt

    mine = [r for r in rows if r["micro_batches"] == 1 and r["backend"] == "uring"]
    millions = [r["parameters"] / 1e6 for r in mine]
    figure, axes = plt.subplots(figsize=(6, 3.5))
    axes.loglog(millions, [r["resident_peak"] / 2**30 for r in mine], "o-", label="whole process")
    axes.loglog(millions, [12 * r["parameters"] / 2**30 for r in mine], "--",
                label="12 bytes a parameter, in memory")  # fmt: skip
    axes.axhline(CAP_BYTES / 2**30, color="gray", lw=0.8, label="cap")
    axes.set(xlabel="parameters, millions", ylabel="GiB")
    axes.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    """Measure the missing cases, or show the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="folder on the disk to use")
    parser.add_argument("--table", action="store_true", help="print results.json")
    parser.add_argument("--plot", action="store_true", help="draw results.json")
    args = parser.parse_args()
    rows = read_rows(RESULTS)
    if args.plot:
        return plot(rows)
    if not args.table:
        if args.folder is None:
            parser.error("FOLDER is missing; name a folder on the disk to use")
        seen = {(r["parameters"], r["micro_batches"], r["backend"]) for r in rows}
        for case in CASES:
            if case in seen:
                continue
            rows.append(measured(*case, args.folder))
            print(json.dumps(rows[-1]), flush=True)
            write_rows(RESULTS, rows, command="python -m experiments.offload.run FOLDER")
    print(table(rows))
    return None


if __name__ == "__main__":
    main()
