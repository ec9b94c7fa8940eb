"""Outcome of one piece of a part, read from its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sluiceway.machine.finding import last_words

_SANITIZERS = ("memcheck", "racecheck")
_ENDED_BY_LIMIT = (124, 137)  # Exit statuses of timeout(1): terminated, and killed.
_NOT_RUN = 77  # Exit status that run.sh gives a piece whose tool is missing.


def outcome(work: Path, piece: str, status: int) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return `state` and `told`, and rows where the piece is a benchmark.

    `state` is passed, failed, not finished or not run. The two in the middle come with `log`, the
    end of the output.
    """
    log, rows = work / f"{piece}.txt", []
    state = "passed" if status == 0 else "failed"
    if status in _ENDED_BY_LIMIT:
        found = {"state": "not finished", "told": unfinished(log)}
    elif status == _NOT_RUN:
        found = {"state": "not run", "told": last_line(log)}
    elif piece.startswith(_SANITIZERS):
        found = sanitizer(log, state)
    elif (work / f"{piece}.xml").exists():
        found = tests(work / f"{piece}.xml", state)
    elif (work / f"{piece}.json").exists() and status == 0:
        rows = json.loads((work / f"{piece}.json").read_text())["benchmarks"]
        found = {"state": state, "told": f"{len(rows)} rows"}
    elif (work / piece / "summary.json").exists():
        found = run(work / piece / "summary.json", state)
    elif any("Running 0 tests from" in line for line in last_lines(log, 20)):
        found = {"state": "failed", "told": "no test ran"}
    else:
        found = {"state": state, "told": last_line(log)}
    if found["state"] in ("failed", "not finished"):
        found["log"] = last_lines(log, 60)
    return found, rows


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of the log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.splitlines()[-count:]


def last_line(log: Path) -> str:
    """Return the last line that is not empty; after a crash, the line where Python was."""
    return last_words(last_lines(log, 200))[:300]


def unfinished(log: Path) -> str:
    """Return the test that was running when a piece was cut, or else its last output."""
    text = log.read_text(errors="replace")
    begun = re.findall(r"^\[ RUN +\] (\S+)", text, re.MULTILINE)
    if begun:
        ended = len(re.findall(r"^\[ +(?:OK|FAILED) +\] \S+ \(\d+ ms\)", text, re.MULTILINE))
        return f"{ended} tests ended, then {begun[-1]}"
    ended = re.findall(r"^\[gw\d+\].* (?:PASSED|FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if ended:
        begun = re.findall(r"^tests/\S+::\S+", text, re.MULTILINE)
        without_end = [name for name in dict.fromkeys(begun) if name not in ended]
        return f"{len(ended)} tests ended, not {', '.join(without_end) or 'the others'}"[:300]
    return last_line(log)


def tests(junit: Path, state: str) -> dict[str, str]:
    """Count the passed tests, and name the others, including skipped ones."""
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
    """Last line of a sanitizer; one that could not attach has none, which is no failure."""
    text = log.read_text(errors="replace")
    last = re.findall(r"^=+\s*(.*SUMMARY:.*)$", text, re.MULTILINE)
    if re.search(r"^\[=+\] (Running )?0 tests", text, re.MULTILINE):
        return {"state": "failed", "told": "no test ran"}
    if last:
        return {"state": state, "told": last[-1]}
    first = next((line for line in text.splitlines() if line.strip()), "no output")
    return {"state": "not run", "told": first[:300]}


def run(summary: Path, state: str) -> dict[str, str]:
    """Outcome of a run of the command line."""
    found = json.loads(summary.read_text())
    if found["status"] != "done":
        state = "failed"
    seconds = found.get("median_step_seconds")
    took = f", {1e3 * seconds:.1f} ms a step" if seconds else ""
    losses = f"loss {found.get('first_eval_loss')} to {found.get('final_eval_loss')}"
    return {"state": state, "told": f"{found['status']}, {losses}{took}"}
