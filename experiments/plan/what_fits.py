"""Tokens a second that `sluiceway plan MODEL` predicts for seven models on four machines.

    python -m experiments.plan.what_fits            # writes what_fits.jsonl, cell by cell
    python -m experiments.plan.what_fits --table    # prints the table of README.md

All figures are modelled: no card and no drive is measured, so every machine writes the same rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from experiments.harness import REPOSITORY, append_row, provenance, read_rows

RESULTS = Path(__file__).with_suffix(".jsonl")
TOKENS = 8192
MODELS = {
    "1 G": "llama_1b", "3 G": "llama_3b", "8 G": "llama_8b", "14 G": "qwen_14b",
    "32 G": "qwen_32b", "70 G": "llama_70b", "98 G": "llama_98b",
}  # fmt: skip
# The card, memory and drive of each machine, by the title of its column.
MACHINES = {
    "8 + 16 GB": ("rtx4060-laptop", "16GiB", "gen4:1TB"),
    "12 + 32 GB": ("rtx4070", "32GiB", "gen4:2TB"),
    "24 + 64 GB": ("rtx4090", "64GiB", "gen4:4TB"),
    "24 + 128 GB": ("rtx4090", "128GiB", "gen4:4TB"),
}
EXACT = ("native", "offload")
WAYS = {"native": "native", "offload": "offload", "offload, 8bit": "8bit", "subspace": "subspace"}


def planned(size: str, where: str) -> dict:
    """Plan one model on one machine, and keep what the table and a reader need of it."""
    card, ram, disk = MACHINES[where]
    command = ["plan", f"configs/shapes/{MODELS[size]}", "--card", card, "--ram", ram]
    command += ["--disk", disk, "--tokens", str(TOKENS), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway", *command],
        capture_output=True, text=True, cwd=REPOSITORY, check=False,
    )  # fmt: skip
    if not done.stdout:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)
    kept = ("name", "seconds_per_step", "tokens_per_second", "peak_bytes", "days_to_worn_drive",
            "options")  # fmt: skip
    ways = [{key: way[key] for key in kept} for way in found["ways"] if way["fits"]]
    made = provenance() | {"command": " ".join(["sluiceway", *command])}
    return {"size": size, "machine_planned": where, "ways": ways, **made}


def cell(row: dict) -> str:
    """Format the fastest way, and in parentheses the fastest with all of AdamW's bits."""
    found = {way["name"]: round(way["tokens_per_second"]) for way in row["ways"]}
    others = {name: rate for name, rate in found.items() if name in WAYS}
    if not others:
        return f"{found['zo']:,} zo" if found else "-"
    first, exact = next(iter(others)), next((n for n in others if n in EXACT), None)
    text = f"{others[first]:,} {WAYS[first]}"
    return text if exact in (None, first) else f"{text} ({others[exact]:,})"


def table(rows: list[dict]) -> str:
    """Format the rows as Markdown: models down, machines across."""
    found = {(row["size"], row["machine_planned"]): cell(row) for row in rows}
    lines = ["| parameters | " + " | ".join(MACHINES) + " |", "|---|" + "---|" * len(MACHINES)]
    for size in MODELS:
        lines.append(f"| {size} | " + " | ".join(found[size, where] for where in MACHINES) + " |")
    return "\n".join(lines)


def main() -> None:
    """Plan the missing cells, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print what_fits.jsonl")
    args = parser.parse_args()
    rows = read_rows(RESULTS)
    if args.table:
        print(table(rows))
        return
    done = {(row["size"], row["machine_planned"]) for row in rows}
    for size in MODELS:
        for where in MACHINES:
            if (size, where) not in done:
                append_row(RESULTS, planned(size, where))
                print(f"{size} on {where}", flush=True)


if __name__ == "__main__":
    main()
