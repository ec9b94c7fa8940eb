"""Run the pieces of a part of run.sh, and write the findings as JSON and as a table.

    python -m experiments.gpu.record commit
    python -m experiments.gpu.record gpu-tests BUILD     # a line each: name, path in BUILD
    python -m experiments.gpu.record check OUT           # exit status 1: OUT is of another commit
    python -m experiments.gpu.record is-done PART OUT    # exit status 0: there is nothing left
    python -m experiments.gpu.record run PART OUT --work FOLDER --seconds S --at-once N
    python -m experiments.gpu.record write PART OUT --work FOLDER --status N --seconds S
    python -m experiments.gpu.record table OUT [PART ...]

`run` reads one piece a line: name, limit in seconds, and a command for bash, separated by tabs. A
piece leaves its output in FOLDER/PIECE.txt, and beside it PIECE.xml (JUnit), PIECE.json
(benchmarks) or PIECE/summary.json (a run). A piece enters OUT/PART.json as soon as it has ended. A
piece already recorded there does not run again unless it failed or was cut. `step`, `memory`,
`peers` and `fidelity` write their rows there themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sluiceway.base.atomic import replace_file

from experiments.gpu.pieces import last_lines, outcome
from experiments.harness import REPOSITORY, UNKNOWN, commit_here
from experiments.quickstart.limited import CUT, Limited

PARTS = ("build", "smoke", "step", "memory", "bench", "engines", "peers", "fidelity", "sanitize")
_CARD = ("name", "driver_version", "memory.total", "compute_cap")
_ENDED = ("passed", "not run")
_LEAST_SECONDS = 5  # A piece that would get fewer seconds does not start.


def answer(*command: str) -> str:
    """Run a command and return its output; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """Commit that is checked out, marked if the work tree differs from it."""
    describe = "git", "describe", "--always", "--dirty", "--abbrev=40"
    return os.environ.get("SLUICEWAY_COMMIT") or answer(*describe) or commit_here()


def card() -> dict[str, str]:
    """Name and driver of the first card, from nvidia-smi."""
    query = f"--query-gpu={','.join(_CARD)}"
    lines = answer("nvidia-smi", query, "--format=csv,noheader").splitlines()
    return dict(zip(_CARD, lines[0].split(", "), strict=True)) if lines else {}


def processor() -> str:
    """Processor model that Linux reports, and the number of processors."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{os.cpu_count()} x {model.group(1) if model else os.uname().machine}"


def read(part: str, out: Path) -> dict[str, Any]:
    """Read OUT/PART.json; return an empty record if it does not exist."""
    path = out / f"{part}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(part: str, out: Path, record: dict[str, Any]) -> None:
    """Write OUT/PART.json atomically."""
    whole = {"part": part, "commit": commit(), "card": card(), "processor": processor(),
             "nvcc": answer("nvcc", "--version").splitlines()[-1:]}  # fmt: skip
    replace_file(out / f"{part}.json", (json.dumps({**record, **whole}, indent=1) + "\n").encode())


def complaint(out: Path) -> str:
    """Reason why nothing may be added to OUT: files of two commits are never mixed."""
    here = commit()
    if here == UNKNOWN:
        return "this checkout has no known commit; set SLUICEWAY_COMMIT"
    for part in PARTS:
        found = read(part, out).get("commit", here)
        if found != here:
            return f"{out}/{part}.json is of commit {found}, expected {here}; give another OUT"
    return ""


def step_args() -> str:
    """Arguments that narrow the part `step`, and so the rest of it."""
    return os.environ.get("STEP_ARGS", "")


def is_done(part: str, out: Path) -> bool:
    """Tell whether the part has ended without a failure, with nothing left.

    The number of steps left depends on the options at that time; with other options it is unknown.
    """
    record = read(part, out)
    if part == "step" and record.get("step_args", "") != step_args():
        return False
    return record.get("status") == 0 and not record.get("left")


def has_piece(part: str, out: Path, piece: str) -> bool:
    """Tell whether a piece has ended, other than by a failure or for lack of time."""
    return read(part, out).get("pieces", {}).get(piece, {}).get("state") in _ENDED


def add_piece(part: str, out: Path, piece: str, work: Path, status: int, seconds: float) -> bool:
    """Add a piece that has ended or was cut to OUT/PART.json; return True unless it failed."""
    record = read(part, out)
    found, rows = outcome(work, piece, status)
    record.setdefault("pieces", {})[piece] = {**found, "seconds": round(seconds, 1)}
    if rows:
        names = {row["name"] for row in rows}
        kept = [row for row in record.get("rows", []) if row["name"] not in names]
        record["rows"] = kept + rows
    save(part, out, record)
    return found["state"] in _ENDED


class Sitting:
    """Pieces of one part that run beside each other, each for at most its own limit.

    Parameters
    ----------
    part : str
    out, work : pathlib.Path
        Folders of results, and of what pieces leave.
    seconds : float
        The part's; a piece that is not begun by then has failed.
    """

    def __init__(self, part: str, out: Path, work: Path, seconds: float) -> None:
        self._part, self._out, self._work = part, out, work
        self._end = time.monotonic() + seconds
        self._running: dict[str, tuple[Limited, float]] = {}
        self._failed = False

    def take(self, lines: Iterable[str], at_once: int) -> bool:
        """Run each piece that OUT lacks, in order, `at_once` at a time; True without a failure."""
        left = [line.rstrip("\n").split("\t", 2) for line in lines]
        left = [one for one in left if not has_piece(self._part, self._out, one[0])]
        try:
            while left or self._running:
                while left and len(self._running) < at_once:
                    self._begin(*left.pop(0))
                for name in list(self._running):
                    self._look(name)
                time.sleep(0.05)
        finally:
            for running, _ in self._running.values():
                running.end()
        return not self._failed

    def _begin(self, name: str, limit: str, command: str) -> None:
        for path in self._work.glob(f"{name}.*"):
            path.unlink()
        log, now = self._work / f"{name}.txt", time.monotonic()
        left = self._end - now
        if left < _LEAST_SECONDS:
            log.write_text("no time was left for it\n")
            self._add(name, CUT, 0)
            return
        print(f"gpu: {name}", flush=True)
        running = Limited(["bash", "-c", command], log, min(float(limit), left))
        self._running[name] = running, now

    def _look(self, name: str) -> None:
        running, began = self._running[name]
        if (status := running.poll()) is not None:
            del self._running[name]
            self._add(name, status, time.monotonic() - began)

    def _add(self, name: str, status: int, seconds: float) -> None:
        if not add_piece(self._part, self._out, name, self._work, status, seconds):
            self._failed = True
            said = last_lines(self._work / f"{name}.txt", 15)
            print(f"gpu: {name}, exit status {status}:", *said, sep="\n", flush=True)


def gpu_tests(build: Path) -> list[tuple[str, str]]:
    """Return name and path in the build folder of each test with the label `gpu`.

    ctest knows no path for a test that is not built, so that path is empty.
    """
    build = build.resolve()
    listed = answer("ctest", "--test-dir", str(build), "-L", "gpu", "--show-only=json-v1")
    return [
        (test["name"], os.path.relpath(test["command"][0], build) if "command" in test else "")
        for test in json.loads(listed)["tests"]
    ]


def write(part: str, out: Path, work: Path, status: int, seconds: int) -> None:
    """Record how the part ended; after a failure, the end of its log as well."""
    record = {**read(part, out), "status": status, "seconds": seconds}
    record.pop("log", None)
    if part == "step":
        record["step_args"] = step_args()
    if status != 0 and (work / "log.txt").exists():
        record["log"] = last_lines(work / "log.txt", 40)
    save(part, out, record)


def write_table(out: Path, parts: list[str]) -> None:
    """Print these parts as Markdown, and write OUT/table.txt with all parts."""
    # This import takes half of the script's time, and the script starts often.
    from experiments.gpu.part_tables import table

    records = [{"part": part, **record} for part in PARTS if (record := read(part, out))]
    (out / "table.txt").write_text(table(records) + "\n", encoding="utf-8")
    print(table([record for record in records if record["part"] in parts]))


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("commit")
    commands.add_parser("gpu-tests").add_argument("build", type=Path)
    for name in ("check", "is-done", "run", "write", "table"):
        command = commands.add_parser(name)
        if name in ("is-done", "run", "write"):
            command.add_argument("part", choices=PARTS)
        command.add_argument("out", type=Path)
        if name == "table":
            command.add_argument("parts", nargs="*", default=list(PARTS))
        if name in ("run", "write"):
            command.add_argument("--work", type=Path, required=True)
            command.add_argument("--seconds", type=int, required=True)
    commands.choices["run"].add_argument("--at-once", type=int, required=True)
    commands.choices["write"].add_argument("--status", type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """Run one of the commands."""
    args = parsed()
    match args.command:
        case "commit":
            print(commit())
        case "check":
            if said := complaint(args.out):
                print(f"gpu: {said}", file=sys.stderr)
                return 1
        case "is-done":
            return 0 if is_done(args.part, args.out) else 1
        case "gpu-tests":
            print(*("\t".join(test) for test in gpu_tests(args.build)), sep="\n")
        case "run":
            # So that ending this process also ends its children.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            sitting = Sitting(args.part, args.out, args.work, args.seconds)
            return 0 if sitting.take(sys.stdin, args.at_once) else 1
        case "write":
            write(args.part, args.out, args.work, args.status, args.seconds)
        case "table":
            write_table(args.out, args.parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
