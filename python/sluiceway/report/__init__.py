"""One self-contained HTML page about one run or several, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluiceway.base.atomic import replace_file
from sluiceway.errors import IoError, Unavailable
from sluiceway.run.run_record import read_records


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
    sluiceway.errors.Unavailable
        plotly is not installed.
    sluiceway.errors.IoError, sluiceway.errors.InvalidArgument
        A run folder cannot be read (see `read_records`), or the page cannot be written.
    """
    try:
        from sluiceway.report.page import make_page
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        hint = "run: pip install 'sluiceway[report]'"
        raise Unavailable(f"report: plotly draws the page and is not installed; {hint}") from None
    runs = read_records(folders)
    path = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    page = make_page(runs).encode()
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        replace_file(path, page)  # In one step: a browser may have the old page open.
    except OSError as error:
        why = f"the report cannot be written, {error.strerror}; choose another --out"
        raise IoError(f"{path}: {why}", error.errno, str(path)) from None
    keys = ("name", "folder", "status", "figures", "notes")
    said = [{key: getattr(run, key) for key in keys} | {"folder": str(run.folder)} for run in runs]
    return {"report": str(path), "bytes": len(page), "runs": said}
