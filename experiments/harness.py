"""Rows of results and who made them, and the studies whose missing runs fill a file of rows.

A claim has one file: `.jsonl`, to which append_row() adds one row a line, or `.json`, a document
that write_rows() replaces whole. A reader finds whole rows in either, after a kill too. Every row
or document names the commit, command and machine that made it.

    python -m experiments.harness RESULTS.jsonl NAME.json ...    # appends whole documents as lines

A Study plans its runs from the results so far, so run_study() repeats no run that has a row.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sluiceway.base.atomic import replace_file

REPOSITORY = Path(__file__).resolve().parents[1]
UNKNOWN = "unknown"  # Stands for the commit without a repository and without SLUICEWAY_COMMIT.
Row = dict[str, Any]


# ---- Who made a row ------------------------------------------------------------------------------


def provenance() -> dict[str, str]:
    """Return the commit, command and machine that a row or a document of results names.

    SLUICEWAY_COMMIT gives the commit where there is no repository, or where a caller has looked it
    up.
    """
    from sluiceway.machine.placement import processor_name  # It needs the compiled module.

    spec = sys.modules["__main__"].__spec__  # None for a script that Python got by its path.
    program = ["-m", spec.name] if spec else sys.argv[:1]
    return {
        "commit": commit_here(),
        "command": " ".join(["python", *program, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} x {processor_name()}",
    }


def commit_here() -> str:
    """Return the commit that is checked out, or `UNKNOWN`."""
    if said := os.environ.get("SLUICEWAY_COMMIT"):
        return said
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or UNKNOWN


def commits(rows: Iterable[Row]) -> str:
    """Return the commits that made the rows, as text for the head of a page."""
    return ", ".join(sorted({row["commit"][:12] for row in rows if row.get("commit")})) or UNKNOWN


def check_document(path: Path, **options: object) -> Row:
    """Exit if the document is of another commit or of other options; else return it.

    One document never mixes such rows. An option that is None here, or that the document lacks, may
    have any value. Without a document, make its folder and return {}.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {}
    found = json.loads(path.read_text())
    old, new = found["commit"], commit_here()
    if new == UNKNOWN:
        sys.exit(f"{path}: this checkout has no known commit, expected {old}; set SLUICEWAY_COMMIT")
    if old != new:
        sys.exit(f"{path}: is of commit {old}, expected {new}; give another file")
    for name, here in options.items():
        if here is not None and found.get(name, here) != here:
            sys.exit(f"{path}: is of --{name} {found[name]}, expected {here}; give another file")
    return found


# ---- Files of rows -------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """Return the whole rows that a file has so far; none if it does not exist."""
    if not path.exists():
        return []
    if path.suffix != ".jsonl":
        return json.loads(path.read_text()).get("rows", [])
    content, rows = path.read_bytes(), []
    for number, line in enumerate(content[: _whole_bytes(content)].splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}:{number}: is no row ({error}), expected one JSON object a line. Remove "
                "the line to repeat its run."
            ) from None
    return rows


def write_rows(path: Path, rows: list[Row], **more: object) -> None:
    """Replace a document with these rows, their provenance, and the script's `more` fields."""
    replace_file(path, document_text({**provenance(), **more, "rows": rows}).encode())


def document_text(document: Row) -> str:
    """Return a document as JSON with one row a line."""
    head = json.dumps({**document, "rows": []}, indent=1)
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["rows"])
    return head.removesuffix("[]\n}") + f"[\n{rows}\n ]\n}}\n"


def read_documents(path: Path) -> dict[str, Row]:
    """Return the documents of a file by name: each line of a `.jsonl`, or all of a `.json`."""
    if path.suffix != ".jsonl":
        return {path.stem: json.loads(path.read_text())}
    return {row["name"]: row for row in read_rows(path)}


def append_row(path: Path, row: Row) -> None:
    """Append one row after the last whole line; two writers keep each other's rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, sort_keys=True) + "\n").encode()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = _whole_bytes(path.read_bytes())
        os.ftruncate(file, whole)
        written = os.pwrite(file, line, whole)
        os.fsync(file)
    finally:
        os.close(file)
    if written != len(line):
        raise OSError(f"{path}: wrote only {written} of {len(line)} bytes; free some disk space")


def _whole_bytes(content: bytes) -> int:
    """Length of the content up to the end of its last whole line."""
    return content.rfind(b"\n") + 1


# ---- Studies -------------------------------------------------------------------------------------


class Results(Protocol):
    """Finished runs, by what was asked for."""

    def has(self, run: Any) -> bool:
        """Tell whether the run has finished."""


@dataclass(frozen=True)
class Study:
    """Runs that fill a file of rows, and the page that shows them.

    Parameters
    ----------
    results : Path
        Rows of the finished runs; the page is written beside it.
    read : callable
        Results of a file of rows.
    stages : mapping
        By name, the runs that are known to be needed, from the results so far. A stage may ask for
        more once it has seen some.
    measure : callable
        Row of a run; each worker process calls it, with torch on one thread.
    document : callable
        Text of the page, in Markdown.
    page : str
        File name of the page.
    """

    results: Path
    read: Callable[[Path], Results]
    stages: Mapping[str, Callable[[Any], Iterable[Any]]]
    measure: Callable[[Any], Row]
    document: Callable[[Any], str]
    page: str


def run_study(study: Study, about: str) -> None:
    """Run what is missing, count it, or write the page of results, as the command line says."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(study.stages)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME",
                        help=f"make these runs alone: {', '.join(names)}")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, a core each (2)")
    parser.add_argument("--count", action="store_true", help="count the missing runs, run nothing")
    parser.add_argument("--table", action="store_true", help="write the page, run nothing")
    parser.add_argument("--results", type=Path, default=study.results, help="file of rows")
    args = parser.parse_args()
    if args.table:
        page = args.results.with_name(study.page)
        page.write_text(study.document(study.read(args.results)))
        print(page)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # Workers import torch after this.
    while (missing := missing_runs(study, args.results, args.only)) and not args.count:
        try:
            _run(study, args.results, missing, args.jobs)
        except FileNotFoundError as error:
            sys.exit(str(error))


def missing_runs(study: Study, path: Path, names: Iterable[str]) -> list[Any]:
    """Return the runs that the named stages lack, each once, and print their number by stage."""
    results, missing = study.read(path), {}
    for name in names:
        runs = list(dict.fromkeys(study.stages[name](results)))
        left = [run for run in runs if not results.has(run)]
        print(f"{name}: {len(runs) - len(left)} of {len(runs)} done", flush=True)
        missing |= dict.fromkeys(left)
    return list(missing)


def _run(study: Study, path: Path, runs: list[Any], jobs: int) -> None:
    """Make the runs; an exception in one ends all, and the finished ones keep their rows."""
    tasks, made_by = [(study.measure, run) for run in runs], provenance()
    # Fresh processes now and then, as native code keeps memory.
    pool = multiprocessing.get_context("spawn").Pool(jobs, _begin_worker, maxtasksperchild=50)
    with pool:
        for done, (run, row) in enumerate(pool.imap_unordered(_measured, tasks), 1):
            append_row(path, {**row, **made_by})
            print(f"  {done}/{len(runs)} {run}", flush=True)


def _begin_worker() -> None:
    """Give torch one thread, and let the terminal's Ctrl-C end the worker without a traceback."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _measured(task: tuple[Callable[[Any], Row], Any]) -> tuple[Any, Row]:
    measure, run = task
    return run, measure(run)


def main() -> None:
    """Append documents to a file that keeps several, each under the name of its own file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, metavar="RESULTS.jsonl")
    parser.add_argument("documents", type=Path, nargs="+", metavar="NAME.json")
    args = parser.parse_args()
    for path in args.documents:
        append_row(args.results, {"name": path.stem, **json.loads(path.read_text())})


if __name__ == "__main__":
    main()
