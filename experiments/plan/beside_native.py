"""Time a step and the first step of the default and of native AdamW, on wider models.

    python -m experiments.plan.beside_native            # writes beside_native.json, case by case
    python -m experiments.plan.beside_native --table    # prints it for the README

Runs of native AdamW and of the default alternate, because a machine's speed drifts. Each run is a
separate process with torch on every core and no throttled link. A step has 1,024 tokens unless the
case says less. Use a machine that does nothing else; each case records the load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from experiments.harness import REPOSITORY, read_rows, write_rows
from experiments.plan.wide_llama import write_model
from experiments.quickstart.run_folder import RunFolder, train

RESULTS = Path(__file__).with_suffix(".json")
CONFIG = REPOSITORY / "configs/quickstart.yaml"
TURNS = 3  # Pairs of runs.
COMMON = {"train.steps": 9, "train.warmup_steps": 0, "train.eval_every": 0, "data.eval": "[]",
          "device.link": None, "device.threads": None, "budget": {}}  # fmt: skip
WAYS = {"native": {"engine": {"kind": "native", "embeddings": "frozen"}}, "default": {}}
CASES = {
    f"{millions} M, {dtype}, {tokens} tokens": (millions, dtype, tokens)
    for millions, tokens in ((55, 1024), (154, 512))
    for dtype in ("fp32", "bf16")
}


def seconds(run: RunFolder) -> dict[str, float]:
    """Seconds of the first step, and the median of the later ones."""
    first, *others = (line["seconds"] for line in run.steps)
    return {"first": first, "later": statistics.median(others)}


def measured(name: str, scratch: Path) -> dict:
    """Measure one case: every pair of runs, the median ratio, and the codec of the default."""
    millions, dtype, tokens = CASES[name]
    model = scratch / f"model-{millions}"
    if not model.exists():
        write_model(model, millions)
    shape = {"model.path": model, "model.dtype": dtype, "model.autocast": "off",
             "train.micro_batch": tokens // 256}  # fmt: skip
    turns = []
    for number in range(TURNS):
        order = list(WAYS) if number % 2 == 0 else list(reversed(WAYS))
        runs = {way: train(CONFIG, scratch / way, {**COMMON, **shape, **WAYS[way]},
                           scratch / "log.txt") for way in order}  # fmt: skip
        turns.append({way: seconds(runs[way]) for way in WAYS})
        print(f"{name}: {json.dumps(turns[-1])}", flush=True)
    ratio = statistics.median(turn["default"]["later"] / turn["native"]["later"] for turn in turns)
    codec = ", ".join(sorted({group["codec"] for group in runs["default"].summary["codecs"]}))
    return {"case": name, "load": os.getloadavg()[0], "codec": codec, "ratio": ratio,
            "turns": turns}  # fmt: skip


def table(rows: list[dict]) -> str:
    """Format medians over the turns as Markdown."""
    lines = ["| case | codec | native, s a step | default, s a step | ratio | first step: native, "
             "default, s | load |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        middle = {way: {which: statistics.median(turn[way][which] for turn in row["turns"])
                        for which in ("first", "later")} for way in WAYS}  # fmt: skip
        native, default = middle["native"], middle["default"]
        lines.append(f"| {row['case']} | `{row['codec']}` | {native['later']:.2f} "
                     f"| {default['later']:.2f} | {row['ratio']:.3f} | {native['first']:.2f}, "
                     f"{default['first']:.2f} | {row['load']:.1f} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure the missing cases, or print the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print beside_native.json")
    args = parser.parse_args()
    rows = read_rows(RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            if args.table or any(row["case"] == name for row in rows):
                continue
            rows.append(measured(name, Path(folder)))
            write_rows(RESULTS, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
