"""Compares the predictions of `sluiceway plan` with a run of the same config.

    python -m experiments.plan.run             # writes results.json, case by case
    python -m experiments.plan.run --table     # prints it for the README

Use a machine that does nothing else: the plan measures rates, and the run measures seconds. Each
case records the load.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from experiments.harness import REPOSITORY, read_rows, write_rows
from experiments.plan.wide_llama import write_model
from experiments.quickstart.run_folder import planned, train

RESULTS = Path(__file__).with_name("results.json")
CONFIG = REPOSITORY / "configs/quickstart.yaml"
STEPS = {"train.steps": 20, "train.warmup_steps": 0, "data.eval": "[]"}
CASES = {
    "quickstart": {},
    "quickstart, accumulate 4": {"train.accumulate": 4},
    "quickstart, native": {"engine": {"kind": "native", "embeddings": "frozen"}},
    "quickstart, svd": {"engine.codec": "svd"},
    "Llama of 55 M": {"budget": {}, "device.link": None, "train.steps": 8},
}
QUANTITIES = ("device", "host", "pinned", "process")


def measured(name: str, overrides: dict[str, object], scratch: Path) -> dict:
    """Measure one case; return predicted and found values by quantity."""
    plan = planned(CONFIG, overrides)
    run = train(CONFIG, scratch / "run", overrides, scratch / "log.txt")
    pairs = {q: [plan["peak_bytes"][q], run.peak_bytes(q)] for q in QUANTITIES}
    pairs["seconds"] = [plan["seconds_per_step"], run.step_seconds]
    return {"case": name, "load": os.getloadavg()[0], "codec": plan["codec"], **pairs}


def cell(pair: list[float]) -> str:
    """Format a found value and the error of its prediction."""
    predicted, found = pair
    if not found:
        return "0" if not predicted else f"0, {predicted} predicted"
    text = f"{found:.3f} s" if isinstance(found, float) else f"{found / 2**20:.1f} MiB"
    return f"{text} ({100 * (predicted / found - 1):+.1f} %)"


def table(found: dict) -> str:
    """Format the cases as Markdown."""
    columns = (*QUANTITIES, "seconds")
    lines = ["| case | " + " | ".join(columns) + " | load |", "|---|" + "---|" * 6]
    for row in found["rows"]:
        cells = " | ".join(cell(row[q]) for q in columns)
        lines.append(f"| {row['case']} | {cells} | {row['load']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the missing cases, or print the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print results.json")
    args = parser.parse_args()
    rows = read_rows(RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name, own in CASES.items():
            if args.table or any(row["case"] == name for row in rows):
                continue
            overrides = {**STEPS, **own}
            if name.startswith("Llama"):
                overrides["model.path"] = write_model(scratch / "model", 55)
            rows.append(measured(name, overrides, scratch))
            print(json.dumps(rows[-1]), flush=True)
            write_rows(RESULTS, rows)
    print(table({"rows": rows}))


if __name__ == "__main__":
    main()
