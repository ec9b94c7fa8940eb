"""`sluiceway report`: writes one HTML page about runs, side by side."""

from __future__ import annotations

from pathlib import Path

from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes
from sluiceway.report import write_report


def report(folders: list[Path], out: Path | None, as_json: bool) -> None:
    """Write the page and print its path."""
    written = write_report(folders, out)
    names = ", ".join(run["name"] for run in written["runs"])
    said = f"{written['report']}: {names}, {format_bytes(written['bytes'])}"
    print(json_text(written) if as_json else said)
