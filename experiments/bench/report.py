"""Run every kernel benchmark of a build and print how close each comes to its roof.

    python -m experiments.bench.report BUILD_DIR [--once] [--only NAME] [--filter REGEX]
        [--out FILE]

The roof is measured by the benchmark itself in the same run (`roof_ratio`), so a figure is
comparable on any machine. With --once each benchmark runs for one iteration, which shows that it
still works and says nothing about speed. The JSON keeps commit, machine and preset.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_bench(binary: Path, once: bool, pattern: str) -> list[dict[str, Any]]:
    """Run the benchmarks of one binary and return Google Benchmark's rows."""
    command = [str(binary), "--benchmark_format=json", f"--benchmark_filter={pattern}"]
    if once:
        command.append("--benchmark_min_time=0")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{binary.name}: exit status {done.returncode}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["benchmarks"] if done.stdout else []
    for row in rows:
        row["bench"] = binary.name
        if row.get("error_occurred"):
            raise RuntimeError(f"{row['name']}: {row['error_message']}")
    return rows


def cpu_name() -> str:
    """The model that Linux reports, for the record."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """The commit that is checked out, with a mark when the tree differs from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print one line a benchmark; a dash where it reports no rate or has no roof."""
    width = max(len(row["name"]) for row in rows)
    print(f"{'benchmark':<{width}}  {'GB/s':>8}  {'of roof':>7}")
    for row in rows:
        rate = f"{row['gb_per_s']:8.2f}" if "gb_per_s" in row else f"{'-':>8}"
        ratio = f"{row['roof_ratio']:7.2f}" if "roof_ratio" in row else f"{'-':>7}"
        print(f"{row['name']:<{width}}  {rate}  {ratio}")


def main() -> int:
    """Run, print, write; return 1 if a benchmark fails or there is none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="build folder, for example build/cpu")
    parser.add_argument("--once", action="store_true", help="one iteration each")
    parser.add_argument("--only", default="bench_*", help="one binary, for example bench_device")
    parser.add_argument("--filter", default=".", help="regular expression over benchmark names")
    parser.add_argument("--out", type=Path, help="JSON file (default: BUILD_DIR/bench.json)")
    args = parser.parse_args()
    found = sorted((args.build / "experiments" / "bench").glob(args.only))
    binaries = [path for path in found if path.is_file() and path.suffix == ""]
    try:
        rows = [row for binary in binaries for row in run_bench(binary, args.once, args.filter)]
    except RuntimeError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if not rows:
        print(f"bench: no benchmark ran, of {len(binaries)} in {args.build}", file=sys.stderr)
        return 1
    print_rows(rows)
    out = args.out or args.build / "bench.json"
    record = {
        "commit": commit(),
        "machine": cpu_name(),
        "preset": args.build.name,
        "once": args.once,
        "benchmarks": rows,
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
