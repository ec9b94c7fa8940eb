"""The kernel's counters for this process: memory, peaks, bytes requested from the disk."""

from __future__ import annotations

from pathlib import Path

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"


def _fields(name: str) -> dict[str, int]:
    rows = (line.split() for line in (_PROCESS / name).read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def memory() -> dict[str, int]:
    """Bytes: resident now, their peak since `forget_peak()`, and those that cannot be swapped.

    Pages of a huge-page pool are no part of the resident set; they are added to it.
    """
    status = {name: 1024 * value for name, value in _fields("status").items()}
    huge = status.get("HugetlbPages", 0)
    return {
        "resident": status["VmRSS"] + huge,
        "peak": status["VmHWM"] + huge,
        "locked": max(status["VmLck"], status["VmPin"]),
    }


def forget_peak() -> None:
    """Reset the peak of the resident set to its present size."""
    (_PROCESS / "clear_refs").write_text(_RESET_PEAK)


def disk() -> dict[str, int]:
    """Return the bytes that this process has made the disk read and write so far."""
    io = _fields("io")
    return {"read": io["read_bytes"], "written": io["write_bytes"]}


def room(folder: Path) -> int:
    """Return the disk space in bytes that the files of a folder take."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
