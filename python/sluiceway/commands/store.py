"""`sluiceway store inspect | verify`: shows what a chunk store holds, and checks it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.

from sluiceway import _core
from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.base.meter import meter
from sluiceway.base.sizes import format_bytes
from sluiceway.errors import Corrupt
from sluiceway.store.drives import drive_warnings, find_drives


def inspect_store(paths: list[Path], as_json: bool) -> None:
    """Print the description of a store; read no chunk."""
    with _opened(paths) as store:
        found = store.describe()
    warnings = drive_warnings(found)
    if as_json:
        print(json_text({**found, "warnings": warnings}))
    else:
        print(describe_store(found, warnings))


def verify_store(paths: list[Path], as_json: bool) -> None:
    """Read and check everything that the commits of a store hold; print all damage.

    Raises
    ------
    sluiceway.errors.Corrupt
        A part of the store is damaged.
    """
    with _opened(paths) as store:
        held = store.describe()
        kept = [region for region in held["regions"] if region["kind"] != "gradient"]
        all_chunks = sum(region["chunks"] for region in kept) * (2 if held["pinned"] else 1)
        began = time.monotonic()
        with meter("chunks", all_chunks) as advance:
            wrong = store.verify(lambda done, count: advance(1))
    figures = {
        "ok": not wrong,
        "id": held["id"],
        "step": held["live"]["step"],
        "chunks": sum(region["live_chunks"] for region in kept),
        "bytes": sum(region["live_bytes"] for region in kept),
        "pinned_step": held["pinned"]["step"] if held["pinned"] else None,
        "seconds": time.monotonic() - began,
        "wrong": wrong,
    }
    print(json_text(figures) if as_json else describe_verified(figures))
    if wrong:
        count = "1 thing is" if len(wrong) == 1 else f"{len(wrong)} things are"
        raise Corrupt(
            f"store {held['id']}: {count} damaged, as listed; all other parts can be read"
        )


@contextlib.contextmanager
def _opened(paths: list[Path]) -> Iterator[_core.ChunkStore]:
    store = _core.open_store(find_drives(paths))
    try:
        yield store
    finally:
        store.close()


def describe_store(found: dict[str, Any], warnings: list[str]) -> str:
    """Return the text for people."""
    rows = [["store", f"{found['id']}, version {found['version']}"]]
    for name in ("live", "pinned"):
        rows.append([name, _commit_text(found[name])])
    rows.append(["generation", str(found["generation"])])
    room = format_bytes(found["run_state_most_bytes"])
    rows.append(["run state", f"{format_bytes(found['live']['run_state_bytes'])}, at most {room}"])
    rows.append(["catalogue", format_bytes(found["catalogue_bytes"])])
    rows.append(["damage", found["damage"] or "none in the superblocks"])
    regions = [["region", "kind", "slots", "chunks", "chunk", "written", "bytes"]]
    for number, region in enumerate(found["regions"]):
        regions.append(
            [
                str(number),
                region["kind"],
                str(region["slots"]),
                str(region["chunks"]),
                format_bytes(region["chunk_bytes"]),
                "-" if region["kind"] == "gradient" else str(region["live_chunks"]),
                "-" if region["kind"] == "gradient" else format_bytes(region["live_bytes"]),
            ]
        )
    drives = [["drive", "path", "size", "weight", "spares", "read by", "direct"]]
    for number, drive in enumerate(found["drives"]):
        drives.append(
            [
                str(number),
                drive["path"],
                format_bytes(drive["bytes"]),
                str(drive["weight"]),
                str(found["spares"]),
                drive["backend"],
                "yes" if drive["direct"] else "no",
            ]
        )
    parts = [columns(rows), columns(regions, "23456"), columns(drives, "234")]
    return "\n\n".join(parts + (["\n".join(warnings)] if warnings else []))


def _commit_text(commit: dict[str, Any] | None) -> str:
    return f"step {commit['step']}, generation {commit['generation']}" if commit else "nothing"


def describe_verified(figures: dict[str, Any]) -> str:
    """Return the lines for people."""
    held = f"step {figures['step']}: {figures['chunks']} chunks, {format_bytes(figures['bytes'])}"
    if figures["pinned_step"] is not None:
        held += f", and what is pinned of step {figures['pinned_step']}"
    result = "all checksums hold" if figures["ok"] else "damaged:"
    head = f"{held}, read in {figures['seconds']:.1f} s: {result}"
    return "\n".join([head, *(f"  {line}" for line in figures["wrong"])])
