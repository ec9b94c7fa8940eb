"""Vary one factor of the subspace step at a time, in quiet steps, by the prototype: JSONL rows.

python -m experiments.regimes.quiet.factors --hidden 256 --layers 4 --lr 1e-3 --seeds 0 1 2
python -m experiments.regimes.quiet.factors --ways "svd, whole V" "svd, not clipped"
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace

import torch

from experiments.regimes.quiet.prototype import Prototype, Way
from experiments.regimes.quiet.quiet_model import losses, one_batch, random_llama

SVD = Way()
RANDOM = replace(SVD, basis="random", ratio=0.25)
ADAMW = Way(basis="identity", ratio=1.0, thin=False, second="full", residual=False, rates=False)
WAYS = {
    "adamw": ADAMW,
    "adamw, b1 = 0": replace(ADAMW, beta1=0.0),
    "adamw, factored V": replace(ADAMW, second="factored"),
    "residual alone": replace(SVD, ratio=0.0),
    "svd": SVD,
    "svd, not clipped": replace(SVD, core_clip=math.inf),
    "svd, core and residual clipped as one": replace(SVD, joint_clip=True),
    "svd, no residual": replace(SVD, residual=False),
    "svd, not clipped, no residual": replace(SVD, core_clip=math.inf, residual=False),
    "svd, whole V": replace(SVD, second="full"),
    "svd, whole V, no residual": replace(SVD, second="full", residual=False),
    "svd, not clipped, first update left out": replace(SVD, core_clip=math.inf, skip_first=True),
    "svd, not clipped, eps of a tenth": replace(SVD, core_clip=math.inf, relative_eps=0.1),
    "svd, mixed basis": replace(SVD, basis="mixed"),
    "random": RANDOM,
    "random, no residual": replace(RANDOM, residual=False),
    "random, core and residual clipped as one": replace(RANDOM, joint_clip=True),
}


def main() -> None:
    """Run the requested ways."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--hidden", type=int, default=256)
    asked.add_argument("--layers", type=int, default=4)
    asked.add_argument("--lr", type=float, default=1e-3)
    asked.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, metavar="WAY")
    args = asked.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        for name in args.ways:
            model = random_llama(args.hidden, args.layers, seed)
            found = losses(model, Prototype(model, args.lr, WAYS[name]), one_batch(seed))
            row = {"hidden": args.hidden, "lr": args.lr, "seed": seed, "way": name, "losses": found}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
