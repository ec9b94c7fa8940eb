"""Make the README's tables from results.json."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator

MIB = 2**20
ALONE = "forward and backward alone"
SIDES = {"ours": "Sluiceway", "theirs": "DeepSpeed"}


def spread(values: Iterable[float], digits: int) -> str:
    """Format the median, and the range in brackets if its rounded ends differ."""
    ordered = sorted(values)
    low, middle, high = (
        f"{v:,.{digits}f}" for v in (ordered[0], statistics.median(ordered), ordered[-1])
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """Format a table from cells, as many in each row as in the head."""
    lines = [head, ["---"] * len(head), *rows]
    if any(len(cells) != len(head) for cells in lines):
        raise ValueError(f"a row and the head {head} have different numbers of cells")
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _groups(rows: list[dict], *keys: str) -> Iterator[list[dict]]:
    """Yield rows that agree in all keys, ordered by the first of each group."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    yield from found.values()


def above(rows: list[dict], of: list[dict]) -> list[float]:
    """Peaks above the median peak of forward and backward alone at the same size, in bytes."""
    floor = statistics.median(
        row["peak_bytes"] for row in rows if row["name"] == ALONE and row["size"] == of[0]["size"]
    )
    return [row["peak_bytes"] - floor for row in of]


def slope(points: list[tuple[float, float]]) -> float:
    """Slope of the least-squares line through (parameters, bytes)."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _million(row: dict) -> str:
    return f"{row['parameters'] / 1e6:.1f} M"


def memory(stage: dict) -> str:
    """Table of the bytes that the optimizer adds to the host's peak, by size."""
    rows = stage["rows"]
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    named = [_million(next(row for row in rows if row["size"] == size)) for size in sizes]
    head = ["host peak above the model's own, MiB", *named, "bytes a parameter more"]
    cells = []
    for of_name in _groups(rows, "name"):
        if of_name[0]["name"] == ALONE:
            continue
        added = [above(rows, of_size) for of_size in _groups(of_name, "size")]
        points = [
            (of_size[0]["parameters"], statistics.median(bytes_))
            for of_size, bytes_ in zip(_groups(of_name, "size"), added, strict=True)
        ]
        cells.append(
            [
                of_name[0]["name"],
                *(spread((b / MIB for b in bytes_), 0) for bytes_ in added),
                f"{slope(points):.1f}" if len(points) > 1 else "",
            ]
        )
    return markdown(head, cells)


def compared(stage: dict) -> str:
    """Tabulate seconds, bytes and losses of every side and size."""
    head = ["", "parameters", "s a step", "read + written, B/p", "room on disk, B/p",
            "page-locked, MiB", "whole peak, MiB", "loss of the last step"]  # fmt: skip
    cells = []
    for rows in _groups(stage["rows"], "size", "name"):
        first = rows[0]
        read, written = (statistics.median(row[key] for row in rows) for key in ("read", "written"))
        cells.append(
            [
                first["name"],
                _million(first),
                spread((row["seconds"] for row in rows), 2),
                f"{read:.2f} + {written:.2f}",
                f"{first['room_bytes'] / first['parameters']:.1f}",
                f"{first['locked_bytes'] / MIB:.0f}",
                spread(((row["start_bytes"] + row["peak_bytes"]) / MIB for row in rows), 0),
                f"{statistics.median(row['losses'][-1] for row in rows):.4f}",
            ]
        )
    return markdown(head, cells)


def streamed(stage: dict) -> str:
    """Tabulate sides whose weights are elsewhere between their uses, by side and size."""
    head = ["weights streamed", "parameters", "s a step", "of AdamW in memory",
            "read + written, B/p", "page-locked, MiB", "whole peak of steps, MiB",
            "loss of the last step"]  # fmt: skip
    native = {
        rows[0]["size"]: statistics.median(row["seconds"] for row in rows)
        for rows in _groups(stage["rows"], "size", "side")
        if rows[0]["side"] == "native"
    }
    return markdown(
        head,
        (
            [
                rows[0]["name"],
                _million(rows[0]),
                spread((row["seconds"] for row in rows), 2),
                f"{statistics.median(r['seconds'] for r in rows) / native[rows[0]['size']]:.2f}",
                f"{rows[0]['read']:.2f} + {rows[0]['written']:.2f}",
                f"{rows[0]['locked_bytes'] / MIB:.0f}",
                spread(((r["start_bytes"] + r["steady_peak_bytes"]) / MIB for r in rows), 0),
                f"{rows[0]['losses'][-1]:.4f}",
            ]
            for rows in _groups(stage["rows"], "size", "name")
        ),
    )


def tuning(stage: dict) -> str:
    """Table of the settings that were tried."""
    head = ["", "tried", "s a step", "host peak over the start, MiB", "buffers, MiB"]
    return markdown(
        head,
        (
            [
                SIDES[rows[0]["side"]],
                rows[0]["name"],
                spread((row["seconds"] for row in rows), 2),
                spread((row["peak_bytes"] / MIB for row in rows), 0),
                f"{rows[0]['buffer_bytes'] / MIB:.0f}",
            ]
            for rows in _groups(stage["rows"], "side", "name")
        ),
    )


def _yes(rows: list[dict], holds: Callable[[dict], bool]) -> str:
    return f"{sum(map(holds, rows))} of {len(rows)}"


def kills(stage: dict) -> str:
    """Tabulate SIGKILL and resume."""
    head = ["", "saves", "killed after steps", "went on at step", "losses from there on are equal",
            "first of them apart by", "furthest apart", "final weights are equal",
            "written by a save, B/p"]  # fmt: skip
    cells = []
    for rows in _groups(stage["rows"], "side", "save_every"):
        first = rows[0]
        at_once, apart = (
            max(row[key] or 0.0 for row in rows) for key in ("first_apart", "losses_apart")
        )
        every = "every step is one" if first["side"] == "ours" else (
            f"every {first['save_every']} steps" if first["save_every"] else "none")  # fmt: skip
        cells.append(
            [
                SIDES[first["side"]],
                every,
                ", ".join(str(row["killed_after"]) for row in rows),
                ", ".join(str(row["went_on_at"]) for row in rows),
                _yes(rows, lambda row: row["same_losses"]),
                f"{at_once:.3g}",
                f"{apart:.3g}",
                _yes(rows, lambda row: row["same_weights"]),
                f"{max(row['save_bytes'] for row in rows) / first['parameters']:.1f}",
            ]
        )
    return markdown(head, cells)


def _ended(status: int | None) -> str:
    if status is None:
        return "hangs"
    return f"signal {-status}" if status < 0 else f"exit {status}"


def _apart(beside: dict) -> str:
    """Compare the losses of a run with those of an undisturbed one, in words."""
    if not beside["steps"]:
        return "no step"
    return "equal" if beside["same_losses"] else f"up to {beside['losses_apart']:.3g} apart"


def _refused_row(row: dict) -> list[str]:
    side, ended = SIDES[row["side"]], _ended(row["exit_status"])
    if row["when"] == "start":
        left = f"{row['left_bytes'] / MIB:.1f} MiB are left behind"
        return [side, "from the start", ended, str(row["steps"]), "", left]
    again = row["resumed"]
    after = f"{_ended(row['resume_exit_status'])}, goes on at {again['went_on_at']}, losses "
    return [side, f"after {row['told_before']} steps", ended, str(row["steps"]), _apart(row),
            after + _apart(again)]  # fmt: skip


def refused(stage: dict) -> str:
    """Tabulate runs on a volume without room."""
    head = ["", "no room", "ends with", "steps it told of", "their losses beside a run with room",
            "then"]  # fmt: skip
    return markdown(head, map(_refused_row, stage["rows"]))


def tables(results: dict) -> dict[str, str]:
    """Return every table that has results, by name."""
    made = {"memory": ("compare", memory), "compared": ("compare", compared),
            "streamed": ("streamed", streamed), "tuning": ("tune", tuning),
            "kills": ("kills", kills), "refused": ("refused", refused)}  # fmt: skip
    return {name: table(results[of]) for name, (of, table) in made.items() if of in results}


def written(text: str, made: dict[str, str]) -> str:
    """Return a document with each table put between its name and the next empty comment."""
    for name, table in made.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(\n?<!-- -->)", re.DOTALL)
        text = place.sub(lambda hit, table=table: f"{hit[1]}{table}\n<!-- -->", text)
    return text
