"""One self-contained HTML page about one run or several, side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sluiceway.base.atomic import replace_file
from sluiceway.errors import IoError
from sluiceway.report.folders import read_records
from sluiceway.report.page import make_page
from sluiceway.report.records import RunRecord

_FILE = "report.html"


def write_report(folders: list[Path], out: Path | None = None) -> dict[str, Any]:
    """Write the page; return its contents without the curves.

    Parameters
    ----------
    folders : list of Path
        Folders of runs. The native run that a run was compared with is included.
    out : Path or None
        The page; None: report.html in the only folder, or in the working directory for several.

    Raises
    ------
    sluiceway.errors.IoError
        A run folder does not exist, or the page cannot be written.
    sluiceway.errors.InvalidArgument
        A run folder has no metrics yet, or its files cannot be parsed.
    """
    runs = read_records(folders)
    path = out or (folders[0] / _FILE if len(folders) == 1 else Path(_FILE))
    page = make_page(runs, time.strftime("%Y-%m-%d %H:%M:%S %Z")).encode()
    _write(path, page)
    return {"report": str(path), "bytes": len(page), "runs": [_short(run) for run in runs]}


def _short(run: RunRecord) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "status": run.status,
        "figures": run.figures,
        "notes": run.notes,
    }


def _write(path: Path, page: bytes) -> None:
    """Replace the page in one step: a browser may have the old page open."""
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        replace_file(path, page)
    except OSError as error:
        raise IoError(
            f"{path}: the report cannot be written, {error.strerror}; choose another --out",
            error.errno,
            str(path),
        ) from None
