"""What a part of run.sh found, as JSON; and whether there is anything left of it to do.

    python experiments/gpu/record.py commit
    python experiments/gpu/record.py check OUT           # exit status 1: OUT is of another commit
    python experiments/gpu/record.py is-done PART OUT    # exit status 0: there is nothing left
    python experiments/gpu/record.py has PART OUT PIECE  # exit status 0: it need not run again
    python experiments/gpu/record.py piece PART OUT PIECE --work FOLDER --status N --seconds S
    python experiments/gpu/record.py write PART OUT --work FOLDER --status N --seconds S
    python experiments/gpu/record.py table OUT

A part is made of pieces. PIECE leaves its output in FOLDER/PIECE.txt, and beside it PIECE.xml
(JUnit), PIECE.json (benchmarks) or PIECE/summary.json (a run). OUT/PART.json has every piece as
soon as it has ended; `step` and `memory` write their rows there themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name) for name in ("python", "experiments/quickstart")
)

from pieces import outcome
from run_folder import REPOSITORY, UNKNOWN, commit_here
from sluiceway.base.atomic import replace_file

PARTS = ("build", "test", "step", "memory", "bench", "engines")
_CARD = ("name", "driver_version", "memory.total", "compute_cap")
_ENDED = ("passed", "not run")


def answer(*command: str) -> str:
    """What a command prints, or nothing where it is missing or fails."""
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit that is checked out, marked where the tree differs from it."""
    describe = "git", "describe", "--always", "--dirty", "--abbrev=40"
    return os.environ.get("SLUICEWAY_COMMIT") or answer(*describe) or commit_here()


def card() -> dict[str, str]:
    """The first card and its driver, as nvidia-smi names them."""
    query = f"--query-gpu={','.join(_CARD)}"
    lines = answer("nvidia-smi", query, "--format=csv,noheader").splitlines()
    return dict(zip(_CARD, lines[0].split(", "), strict=True)) if lines else {}


def processor() -> str:
    """The model that Linux reports, and how many processors there are."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{os.cpu_count()} x {model.group(1) if model else os.uname().machine}"


def read(part: str, out: Path) -> dict[str, Any]:
    """OUT/PART.json; empty where it is not there."""
    path = out / f"{part}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(part: str, out: Path, record: dict[str, Any]) -> None:
    """Write OUT/PART.json, all of it or nothing."""
    whole = {"part": part, "commit": commit(), "card": card(), "processor": processor(),
             "nvcc": answer("nvcc", "--version").splitlines()[-1:]}  # fmt: skip
    replace_file(out / f"{part}.json", (json.dumps({**record, **whole}, indent=1) + "\n").encode())


def complaint(out: Path) -> str:
    """Why nothing may be added to OUT; files of two commits are never mixed."""
    here = commit()
    if here == UNKNOWN:
        return "the commit is not known here; set SLUICEWAY_COMMIT"
    for part in PARTS:
        found = read(part, out).get("commit", here)
        if found != here:
            return f"{out}/{part}.json is of commit {found}, expected {here}; give another OUT"
    return ""


def step_args() -> str:
    """What narrows the part `step`, and so what is left of it."""
    return os.environ.get("STEP_ARGS", "")


def is_done(part: str, out: Path) -> bool:
    """Whether the part has ended without a failure, and has nothing left.

    How many steps are left was counted with the options of then; with others it is not known.
    """
    record = read(part, out)
    if part == "step" and record.get("step_args", "") != step_args():
        return False
    return record.get("status") == 0 and not record.get("left")


def has_piece(part: str, out: Path, piece: str) -> bool:
    """Whether a piece has ended, other than by a failure or for lack of time."""
    return read(part, out).get("pieces", {}).get(piece, {}).get("state") in _ENDED


def add_piece(part: str, out: Path, piece: str, work: Path, status: int, seconds: int) -> bool:
    """Put a piece that has ended, or has not, into OUT/PART.json; True where it is no failure."""
    record = read(part, out)
    found, rows = outcome(work, piece, status)
    record.setdefault("pieces", {})[piece] = {**found, "seconds": seconds}
    if rows:
        names = {row["name"] for row in rows}
        kept = [row for row in record.get("rows", []) if row["name"] not in names]
        record["rows"] = kept + rows
    save(part, out, record)
    return found["state"] in _ENDED


def write(part: str, out: Path, work: Path, status: int, seconds: int) -> None:
    """How the part ended; of one that failed, the end of its log as well."""
    record = {**read(part, out), "status": status, "seconds": seconds}
    record.pop("log", None)
    if part == "step":
        record["step_args"] = step_args()
    if status != 0 and (work / "log.txt").exists():
        record["log"] = (work / "log.txt").read_text(errors="replace").splitlines()[-40:]
    save(part, out, record)


def write_table(out: Path) -> None:
    """Print all parts as Markdown, and write OUT/table.txt."""
    from part_tables import table  # Half of what this script takes, and it is started a lot.

    text = table([{"part": part, **record} for part in PARTS if (record := read(part, out))])
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    takes = {"commit": "", "check": "o", "is-done": "po", "has": "poi", "piece": "poiw",
             "write": "pow", "table": "o"}  # fmt: skip
    for name, letters in takes.items():
        command = commands.add_parser(name)
        if "p" in letters:
            command.add_argument("part", choices=PARTS)
        if "o" in letters:
            command.add_argument("out", type=Path)
        if "i" in letters:
            command.add_argument("piece")
        if "w" in letters:
            command.add_argument("--work", type=Path, required=True)
            command.add_argument("--status", type=int, required=True)
            command.add_argument("--seconds", type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """One of the commands."""
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
        case "has":
            return 0 if has_piece(args.part, args.out, args.piece) else 1
        case "piece":
            how = (args.piece, args.work, args.status, args.seconds)
            return 0 if add_piece(args.part, args.out, *how) else 1
        case "write":
            write(args.part, args.out, args.work, args.status, args.seconds)
        case "table":
            write_table(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
