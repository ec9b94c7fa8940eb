"""Share of native's gain that codecs keep: (L0 - L) / (L0 - L_native), same trained weights.

    python -m experiments.quickstart.codecs --seeds 3

Every method trains the same weights and gets the same number of learning rates on the first seed;
its best rate is then repeated on the other seeds. Finished runs are read, not repeated, so you can
stop a sweep and start it again. Writes codecs.json; `--table` prints it for the README. The link is
not throttled, which changes no weight.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import yaml

from experiments.harness import REPOSITORY, read_rows, write_rows
from experiments.quickstart.run_folder import RunFolder, train

RESULTS = Path(__file__).parent / "codecs.json"
# Multiples of the config's learning rate. The learned projector's columns are not orthonormal, so
# its update has no 1/f factor, and its rates spread wider.
MULTIPLES = {"native": (1, 0.5, 2), "block_random": (1, 2, 4), "sparse_learned": (4, 8, 2)}
METHODS = {
    "native": {"kind": "native", "embeddings": "frozen"},
    **{
        f"{codec} f={ratio}": {
            "kind": "subspace",
            "codec": codec,
            "ratio": ratio,
            "embeddings": "frozen",
        }
        for codec in ("block_random", "sparse_learned")
        for ratio in (0.25, 0.5)
    },
}


def losses(args: argparse.Namespace, method: str, multiple: float, seed: int) -> dict | None:
    """Train, or read a finished run, and return the held-out losses."""
    config, out = args.config, args.out
    rate = yaml.safe_load(config.read_text())["train"]["lr"] * multiple
    name = f"{method}_x{multiple:g}_seed{seed}".replace(" ", "_").replace("=", "")
    run = RunFolder(out / name)
    if not run.is_done and args.no_train:
        return None
    if not run.is_done:
        settings = {"train.lr": rate, "train.seed": seed, "train.eval_every": 0}
        unthrottled = {"device.link": None, "device.pin": "false", "trace": "false"}
        overrides = {"engine": METHODS[method], **settings, **unthrottled}
        run = train(config, run.path, overrides, log=out / f"{name}.log")
    point = {"method": method, "lr": rate, "seed": seed,
             "before": run.loss_before, "after": run.loss_after}  # fmt: skip
    print(json.dumps(point), flush=True)
    return point


def sweep(args: argparse.Namespace) -> list[dict]:
    """Run all rates on seed 0, then the best rate of each method on the other seeds."""
    points: list[dict] = []

    def add(method: str, rate: float, seed: int) -> None:
        point = losses(args, method, rate, seed)
        if point is None:
            return
        points.append(point)
        if not args.only:
            write_rows(RESULTS, points)

    methods = [name for name in METHODS if args.only in name]
    for place in range(args.rates):
        for method in methods:
            add(method, MULTIPLES[method.split()[0]][place], 0)
    base = yaml.safe_load(args.config.read_text())["train"]["lr"]
    for seed in range(1, args.seeds):
        for method in methods:
            add(method, best_points(points, method)[0]["lr"] / base, seed)
    return points


def best_points(points: list[dict], method: str) -> list[dict]:
    """Return the points of the method's best rate, by the loss of the first seed."""
    mine = [p for p in points if p["method"] == method]
    rate = min((p for p in mine if p["seed"] == 0), key=lambda p: p["after"])["lr"]
    return [p for p in mine if p["lr"] == rate]


def gain(point: dict) -> float:
    """Return the reduction of the held-out loss in the run."""
    return point["before"] - point["after"]


def table(points: list[dict]) -> str:
    """Format loss and kept share per method as Markdown, mean and spread over seeds."""
    native = {p["seed"]: p for p in best_points(points, "native")}
    rows = [
        "| method | lr | held-out loss | share of native's gain | seeds |",
        "|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(p["method"] for p in points):
        chosen = [p for p in best_points(points, method) if p["seed"] in native]
        shares = [100 * gain(p) / gain(native[p["seed"]]) for p in chosen]
        loss = statistics.mean(p["after"] for p in chosen)
        share = f"{statistics.mean(shares):.1f} % ({min(shares):.1f} to {max(shares):.1f})"
        rows.append(f"| {method} | {chosen[0]['lr']:.2g} | {loss:.4f} | {share} | {len(chosen)} |")
    return "\n".join(rows)


def main() -> None:
    """Sweep, or print the recorded points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs/codecs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=int, default=3, help="learning rates a method, at most 3")
    parser.add_argument("--no-train", action="store_true", help="report finished runs only")
    parser.add_argument("--only", default="", help="train only methods with this in their names")
    parser.add_argument("--table", action="store_true", help="print codecs.json as a table")
    args = parser.parse_args()
    points = read_rows(RESULTS) if args.table else sweep(args)
    if not args.only:
        print(table(points))


if __name__ == "__main__":
    main()
