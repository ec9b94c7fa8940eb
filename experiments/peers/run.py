"""Compare DeepSpeed's ZeRO-3 and torch's FSDP2 with OffloadAdamW.

    python -m experiments.peers.run FOLDER                        # all stages
    python -m experiments.peers.run FOLDER --stages compare --sizes 25M --rounds 1
    python -m experiments.peers.run --tables                      # writes the tables of README.md

FOLDER is a folder on the disk to use. DeepSpeed is in build/peers (--theirs), beside the packages
of the repository; README.md says how to install it. Stage `refused` mounts a small file system and
needs root. A stage replaces its earlier results in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata
from pathlib import Path

from experiments.harness import REPOSITORY, provenance
from experiments.peers.child import ENVIRONMENT, undisturbed
from experiments.peers.sides import COMPARED, STREAMED, TUNED

RESULTS = Path(__file__).with_name("results.json")
README = Path(__file__).with_name("README" + ".md")


def machine(theirs: Path) -> dict:
    """Return the machine's kind and the versions of packages; DeepSpeed is in `theirs`."""
    cpu = next(line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines()
               if line.startswith("model name"))  # fmt: skip
    (deepspeed,) = metadata.distributions(name="deepspeed", path=[str(theirs)])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
        "deepspeed": deepspeed.version,
        "environment": ENVIRONMENT,
    }


def tune(args: argparse.Namespace) -> dict:
    """Measure every setting of sides.py at the middle size, in turns."""
    size = args.sizes[len(args.sizes) // 2]
    rows = []
    for round_ in range(args.tune_rounds):
        for side, name, tuning in TUNED:
            row = undisturbed(side, size, args.steps, args.folder / "run", args.theirs, tuning)
            rows.append({"side": side, "name": name, "tuning": tuning, "size": size, **row})
            print(f"tune {round_ + 1}/{args.tune_rounds} {side} {name}: {row['seconds']:.3f} s, "
                  f"{row['peak_bytes'] / 2**20:.0f} MiB", flush=True)  # fmt: skip
    return {"rows": rows}


def _in_turns(args: argparse.Namespace, sides: list[tuple], *options: str) -> dict:
    """Measure every side at every size, in turns."""
    rows = []
    for round_ in range(args.rounds):
        for size in args.sizes:
            for side, name, tuning in sides:
                row = undisturbed(
                    side, size, args.steps, args.folder / "run", args.theirs, tuning, *options
                )
                load = os.getloadavg()[0]
                rows.append({"side": side, "name": name, "tuning": tuning, "size": size,
                             "load": load, **row})  # fmt: skip
                print(f"{round_ + 1}/{args.rounds} {size} {name}: {row['seconds']:.3f} s, "
                      f"{row['peak_bytes'] / 2**20:.0f} MiB, {row['read']:.2f} + "
                      f"{row['written']:.2f} B/p", flush=True)  # fmt: skip
    return {"steps": args.steps, "rows": rows}


def compare(args: argparse.Namespace) -> dict:
    """Measure sides whose weights stay in memory."""
    return _in_turns(args, COMPARED)


def streamed(args: argparse.Namespace) -> dict:
    """Measure sides whose weights are elsewhere between their uses."""
    return _in_turns(args, STREAMED, "--recompute")


def kills(args: argparse.Namespace) -> dict:
    """Measure SIGKILL and resume."""
    from experiments.peers.bad_days import killed

    return killed(args.folder, args.theirs)


def refused(args: argparse.Namespace) -> dict:
    """Measure writes that a full file system refuses."""
    from experiments.peers.bad_days import refused as on_a_full_disk

    return on_a_full_disk(args.folder, args.theirs)


STAGES = {
    "tune": tune,
    "compare": compare,
    "streamed": streamed,
    "kills": kills,
    "refused": refused,
}


def main() -> None:
    """Run stages, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="folder on the disk to use")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--sizes", nargs="+", default=["25M", "55M", "110M"])
    parser.add_argument("--steps", type=int, default=12, help="the first 2 are not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tune-rounds", type=int, default=2)
    parser.add_argument("--theirs", type=Path, default=REPOSITORY / "build/peers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tables", action="store_true", help="run nothing")
    args = parser.parse_args()
    results = json.loads(args.results.read_text()) if args.results.exists() else {}
    if args.tables:
        from experiments.peers.peer_tables import tables, written

        README.write_text(written(README.read_text(), tables(results)))
        return
    if args.folder is None:
        parser.error("FOLDER is missing; name a folder on the disk to use")
    args.folder = args.folder.resolve()
    for stage in args.stages:
        done = STAGES[stage](args)
        results[stage] = {**provenance(), "machine": machine(args.theirs), **done}
        args.results.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
