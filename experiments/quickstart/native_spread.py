"""Spread of native AdamW's final losses from starts that differ only by rounding.

    python -m experiments.quickstart.native_spread     # skips the runs in native_spread.json

Each start is the model's weights in f32, times 1 + 1e-7 z with z normal; the first start is the
model unchanged. The runs are those of configs/quickstart.yaml with native AdamW. Losses do not
depend on how busy the machine is. The demo calls two results level if they are no farther apart
than these.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from experiments.harness import REPOSITORY, read_rows, write_rows
from experiments.quickstart.demo_ways import NATIVE
from experiments.quickstart.run_folder import train

RESULTS = Path(__file__).with_suffix(".json")
CONFIG = REPOSITORY / "configs/quickstart.yaml"
MODEL = REPOSITORY / "experiments/quickstart/model"
RELATIVE = 1e-7


def write_start(folder: Path, seed: int) -> Path:
    """Copy the model with weights that differ by rounding; seed 0 changes nothing."""
    shutil.copytree(MODEL, folder)
    random = torch.Generator().manual_seed(seed)
    weights = {name: w.float() for name, w in load_file(MODEL / "model.safetensors").items()}
    if seed:
        for weight in weights.values():
            weight.mul_(1 + RELATIVE * torch.randn(weight.shape, generator=random))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def ended(seed: int) -> dict[str, float]:
    """Return the held-out losses of one run."""
    with tempfile.TemporaryDirectory() as scratch:
        start = write_start(Path(scratch) / "model", seed)
        own = {**NATIVE, "model.path": start, "train.eval_every": 0}
        run = train(CONFIG, Path(scratch) / "run", own, Path(scratch) / "log.txt")
        return {"seed": seed, "before": run.loss_before, "after": run.loss_after}


def main() -> None:
    """Run the missing starts, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=8)
    args = parser.parse_args()
    runs = read_rows(RESULTS)
    for seed in range(len(runs), args.starts):
        runs.append(ended(seed))
        print(json.dumps(runs[-1]), flush=True)
        losses = [run["after"] for run in runs]
        write_rows(RESULTS, runs, relative=RELATIVE, spread=max(losses) - min(losses))


if __name__ == "__main__":
    main()
