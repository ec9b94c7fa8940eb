"""Time a step with whole gradients and with cores, over the demo's throttled link, in turns.

    python -m experiments.offload_codec.step_time FOLDER [--rounds N]     # writes step_time.json

Runs configs/quickstart_offload_disk.yaml in FOLDER with `identity` and with `block_random` at f =
1/2, each with 1 micro-batch of 4 sequences and with 4 micro-batches of 1. The link has the rate of
configs/quickstart.yaml. A ratio compares two runs of one round.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from experiments.harness import REPOSITORY, write_rows
from experiments.quickstart.run_folder import train

CONFIG = REPOSITORY / "configs/quickstart_offload_disk.yaml"
RESULTS = Path(__file__).with_name("step_time.json")
CODECS = {
    "identity": {},
    "block_random": {"engine.codec": "block_random", "engine.ratio": 0.5},
}


def seconds(folder: Path, codec: str, micro_batches: int, steps: int) -> dict:
    """Make one run and return its medians."""
    batches = {"train.micro_batch": 4 // micro_batches, "train.accumulate": micro_batches}
    overrides = {"train.eval_every": 0, "train.steps": steps, **batches, **CODECS[codec]}
    run = train(CONFIG, folder / "run", overrides, folder / "log")
    return {
        "codec": codec,
        "micro_batches": micro_batches,
        "seconds": run.step_seconds,
        "d2h": run.bytes_per_step("d2h"),
        "disk_read": run.bytes_per_step("disk_read"),
        "disk_written": run.bytes_per_step("disk_written"),
    }


def main() -> None:
    """Run in turns, print each round, write all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder on the disk to use")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    ratios: dict[int, list[float]] = {1: [], 4: []}
    for number in range(args.rounds):
        for micro_batches, found in ratios.items():
            pair = [seconds(args.folder, codec, micro_batches, args.steps) for codec in CODECS]
            rows += [{"round": number, **row} for row in pair]
            found.append(pair[1]["seconds"] / pair[0]["seconds"])
            print(f"M = {micro_batches}: {pair[0]['seconds']:.3f} s whole, "
                  f"{pair[1]['seconds']:.3f} s as cores, {found[-1]:.2f}", flush=True)  # fmt: skip
            medians = {f"M{m}": statistics.median(all_) for m, all_ in ratios.items() if all_}
            write_rows(RESULTS, rows, ratio=medians)


if __name__ == "__main__":
    main()
