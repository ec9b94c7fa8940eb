"""Compare fused linears with hooks and native AdamW: seconds a step, saved activations, losses.

    python -m experiments.fused.run time FOLDER [--rounds N] [--steps N] [--link-gbps R]
    python -m experiments.fused.run memory
    python -m experiments.fused.run agree FOLDER    # losses of every step beside those of hooks

`time` and `agree` run configs/quickstart.yaml with its throttled link. A ratio of times compares
two runs of one round.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from experiments.fused.activations import memory_rows
from experiments.harness import REPOSITORY, write_rows
from experiments.quickstart.run_folder import link_overrides, train

CONFIG = REPOSITORY / "configs/quickstart.yaml"
HERE = Path(__file__).parent
NATIVE = {"engine": {"kind": "native", "embeddings": "frozen"}}


def block_random(ratio: float, residual: str, **more: object) -> dict[str, object]:
    """Overrides for one way of training through `block_random`."""
    options = {"codec": "block_random", "ratio": ratio, "residual": residual, **more}
    return {f"engine.{key}": value for key, value in options.items()}


def fused(ratio: float, every: int = 0) -> dict[str, object]:
    """Overrides for fused linears; `every`: steps between residuals of a weight, 0: none."""
    options = {"fused": "true", "share_inputs": "true"}
    if every:
        return block_random(ratio, "factored", residual_every=every, **options)
    return block_random(ratio, "none", **options)


WAYS = {
    "native": NATIVE,
    "hooks": {},
    "hooks 1/2, no residual": block_random(0.5, "none"),
    "fused 1/2": fused(0.5),
    "fused 1/4": fused(0.25),
    "fused 1/2, every 8th": fused(0.5, 8),
    "fused 1/2, every 4th": fused(0.5, 4),
    "fused 1/2, every 2nd": fused(0.5, 2),
}


def measure_times(args: argparse.Namespace) -> None:
    """Run every way in each round, and write the medians of their ratios to native's."""
    rows: list[dict] = []
    shared = {"train.steps": args.steps, "train.eval_every": 0, "train.eval_sequences": 1}
    if args.link_gbps:
        shared |= link_overrides(args.link_gbps)
    for number in range(args.rounds):
        first = number % len(WAYS)
        for name in [*WAYS, *WAYS][first : first + len(WAYS)]:  # Rounds differ in the first.
            run = train(CONFIG, args.folder / "run", {**shared, **WAYS[name]}, args.folder / "log")
            rows.append(
                {
                    "round": number,
                    "way": name,
                    "seconds": run.step_seconds,
                    "stall_share": run.stall_share,
                    "device_bytes": run.peak_bytes("device"),
                    "d2h": run.bytes_per_step("d2h"),
                    "h2d": run.bytes_per_step("h2d"),
                }
            )
        ratios = ratios_to_native(rows)
        print(", ".join(f"{way}: {ratio:.3f}" for way, ratio in ratios.items()), flush=True)
        write_rows(HERE / "time.json", rows, ratio_to_native=ratios)


def ratios_to_native(rows: list[dict]) -> dict[str, float]:
    """Medians over rounds of a way's seconds divided by native AdamW's in the same round."""
    seconds = {(row["way"], row["round"]): row["seconds"] for row in rows}
    rounds = {number for _, number in seconds}
    return {
        way: statistics.median(seconds[way, n] / seconds["native", n] for n in rounds)
        for way in WAYS
    }


def measure_memory(_: argparse.Namespace) -> None:
    """Count what backward keeps, and compare it with the formula."""
    rows = memory_rows()
    for row in rows:
        print(f"{row['way']}: {row['bytes']:,} bytes of activations, {row['formula']:,} by formula")
    write_rows(HERE / "memory.json", rows)


def measure_agreement(args: argparse.Namespace) -> None:
    """Train the quickstart fused and with hooks, from the same state, and compare their losses."""
    ways = {
        "hooks 1/2, no residual": block_random(0.5, "none"),
        "fused 1/2, a Q for each layer": block_random(0.5, "none", fused="true"),
    }
    rows = []
    for way, overrides in ways.items():  # Read the run before the next one replaces it.
        overrides |= {"model.autocast": args.autocast}
        run = train(CONFIG, args.folder / "run", overrides, args.folder / "log")
        losses = [line["loss"] for line in run.steps]
        rows.append(
            {"way": way, "autocast": args.autocast, "losses": losses, "loss_after": run.loss_after}
        )
    apart = max(abs(a - b) for a, b in zip(*(row["losses"] for row in rows), strict=True))
    print(f"losses of {len(rows[0]['losses'])} steps differ by at most {apart:.2g}; held out: "
          f"{', '.join(str(row['loss_after']) for row in rows)}")  # fmt: skip
    write_rows(HERE / "agree.json", rows, largest_difference=apart)


def main() -> None:
    """Run one of the three measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    times = commands.add_parser("time")
    times.add_argument("folder", type=Path, help="for run folders, which are replaced")
    times.add_argument("--steps", type=int, default=20)
    times.add_argument("--rounds", type=int, default=5)
    times.add_argument("--link-gbps", type=float)
    times.set_defaults(act=measure_times)
    agreement = commands.add_parser("agree")
    agreement.add_argument("folder", type=Path, help="for run folders, which are replaced")
    agreement.add_argument("--autocast", choices=("auto", "off", "bf16"), default="off")
    agreement.set_defaults(act=measure_agreement)
    commands.add_parser("memory").set_defaults(act=measure_memory)
    args = parser.parse_args()
    if "folder" in args:
        args.folder.mkdir(parents=True, exist_ok=True)
    args.act(args)


if __name__ == "__main__":
    main()
