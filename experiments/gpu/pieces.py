"""What became of one piece of a part, from the files that it has left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_SANITIZERS = ("memcheck", "racecheck")
_ENDED_BY_LIMIT = (124, 137)  # Of timeout(1): asked to end, and killed.
_NOT_RUN = 77  # Of a piece that lacks a tool, as run.sh has it.


def outcome(work: Path, piece: str, status: int) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """`state` (passed, failed, not finished, not run) and `told`; rows, where it is a benchmark."""
    if status in _ENDED_BY_LIMIT:
        return {"state": "not finished", "told": last_line(work / f"{piece}.txt")}, []
    if status == _NOT_RUN:
        return {"state": "not run", "told": last_line(work / f"{piece}.txt")}, []
    state = "passed" if status == 0 else "failed"
    if piece.startswith(_SANITIZERS):
        return sanitizer(work / f"{piece}.txt", state), []
    if (work / f"{piece}.xml").exists():
        return tests(work / f"{piece}.xml", state), []
    if (work / f"{piece}.json").exists() and status == 0:
        rows = json.loads((work / f"{piece}.json").read_text())["benchmarks"]
        return {"state": state, "told": f"{len(rows)} rows"}, rows
    if (work / piece / "summary.json").exists():
        return run(work / piece / "summary.json", state), []
    return {"state": state, "told": last_line(work / f"{piece}.txt")}, []


def last_line(log: Path) -> str:
    """Of what it printed, where it printed anything."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:300]


def tests(junit: Path, state: str) -> dict[str, str]:
    """How many passed, and the names of the others; a test that was skipped is one of those."""
    cases = list(ElementTree.parse(junit).iter("testcase"))
    bad = {"failure", "error", "skipped"}
    failed = [
        case.get("name", "")
        for case in cases
        if case.get("status", "run") != "run" or bad & {child.tag for child in case}
    ]
    if failed or not cases:
        state = "failed"
    names = f": {', '.join(failed)}" if failed else ""
    return {
        "state": state,
        "told": f"{len(cases) - len(failed)} passed, {len(failed)} failed{names}",
    }


def sanitizer(log: Path, state: str) -> dict[str, str]:
    """Its last word; one that could not attach here has none, and is no failure of ours."""
    text = log.read_text(errors="replace")
    last = re.findall(r"^=+\s*(.*SUMMARY:.*)$", text, re.MULTILINE)
    if re.search(r"^\[=+\] (Running )?0 tests", text, re.MULTILINE):
        return {"state": "failed", "told": "no test ran"}
    if last:
        return {"state": state, "told": last[-1]}
    first = next((line for line in text.splitlines() if line.strip()), "no output")
    return {"state": "not run", "told": first[:300]}


def run(summary: Path, state: str) -> dict[str, str]:
    """How a run of the command line ended."""
    found = json.loads(summary.read_text())
    if found["status"] != "done":
        state = "failed"
    seconds = found.get("median_step_seconds")
    took = f", {1e3 * seconds:.1f} ms a step" if seconds else ""
    losses = f"loss {found.get('first_eval_loss')} to {found.get('final_eval_loss')}"
    return {"state": state, "told": f"{found['status']}, {losses}{took}"}
