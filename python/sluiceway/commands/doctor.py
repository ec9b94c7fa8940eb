"""`sluiceway doctor`: lists what this machine offers, and what each missing thing costs."""

from __future__ import annotations

import platform
from dataclasses import asdict
from pathlib import Path

from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.commands.engine_trials import engine_findings
from sluiceway.errors import Error
from sluiceway.machine.finding import MISSING, Finding
from sluiceway.machine.processor import processor_findings
from sluiceway.machine.software import software_findings, trial_device
from sluiceway.machine.storage import check_folder, disk_findings, link_findings


def doctor(path: Path, quick: bool, as_json: bool) -> None:
    """Print a line for each finding, or all of them as JSON.

    Raises
    ------
    sluiceway.errors.Error
        A part that every training needs is missing.
    """
    findings = examine(path, quick)
    lacks = [f for f in findings if f.required and f.verdict == MISSING]
    if as_json:
        print(json_text({"ok": not lacks, "findings": [asdict(f) for f in findings]}))
    else:
        print(columns([[f.name, f.verdict, f.found, f.advice] for f in findings]))
    for f in lacks:
        raise Error(f"doctor: {f.name} is missing, {f.found}; {f.advice}")


def examine(path: Path, quick: bool) -> list[Finding]:
    """Return all findings that the command lists; `quick` neither measures rates nor trains."""
    check_folder(path)
    findings = [Finding("python", platform.python_version()), *software_findings()]
    findings += [*processor_findings(), *disk_findings(path, quick)]
    if quick:
        return findings
    findings += link_findings()
    if any(f.required and f.verdict == MISSING for f in findings):
        return findings
    return [*findings, *engine_findings(path, trial_device())]
