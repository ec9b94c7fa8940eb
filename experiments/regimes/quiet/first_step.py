"""Compare the engine's first step of `svd` with the formula, by the engine's own P and Q.

Prints a line for each weight: |S - P^T G Q| / |S|, the off-diagonal part of S, the RMS of the
update over lr by the engine and by the formula, and their distance.
"""

from __future__ import annotations

import argparse

import numpy as np
import sluiceway as sw
import torch

from experiments.regimes.quiet.prototype import Core, Prototype, Way, rms
from experiments.regimes.quiet.quiet_model import one_batch, random_llama

LR = 1e-3


def projector(state: torch.Tensor, m: int, n: int, dm: int, dn: int):
    """Return P and Q, the last values of a codec's state (compress/codec_state.h)."""
    values = np.frombuffer(state.numpy().tobytes()[-4 * (m * dm + n * dn) :], dtype=np.float32)
    both = torch.tensor(values, dtype=torch.float64).split([m * dm, n * dn])
    return both[0].view(m, dm), both[1].view(n, dn)


def main() -> None:
    """Print a line for each compressed weight."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ratio", type=float, default=0.5)
    ratio = asked.parse_args().ratio
    torch.set_num_threads(1)
    way, batch = Way(ratio=ratio, residual=False, rates=False, decay=0.0), one_batch(0)
    model, untouched = random_llama(256, 4, 0), random_llama(256, 4, 0)
    reference = Prototype(untouched, LR, way)
    options = {"residual": "none", "weight_rates": "equal", "wire": "fp32", "weight_decay": 0.0}
    with sw.SubspaceAdamW(model, lr=LR, codec="svd", ratio=ratio, **options) as opt:
        for m in (model, untouched):
            m(input_ids=batch, labels=batch).loss.backward()
        opt.step()
        opt.synchronize()
        weights, before = dict(model.named_parameters()), dict(untouched.named_parameters())
        for index, choice in enumerate(opt.describe()):
            old, dims = before[choice["name"]], (choice["core_rows"], choice["core_cols"])
            g, state = old.grad.double(), opt.engine.weight_state(index)
            p, q = projector(state["codec"], *g.shape, *dims)
            s, sent = p.T @ g @ q, state["exp_avg"].double() / 0.1
            off = s.clone()
            off.fill_diagonal_(0)
            w = old.detach().double()
            expected = (w - reference.moved(Core(p, q, 1.0), w, g, index)) / LR
            moved = (w - weights[choice["name"]].detach().double()) / LR
            print(
                f"{choice['name']:45s} S {(sent - s).norm() / s.norm():.1e}"
                f"  off its diagonal {off.norm() / s.norm():.1e}"
                f"  RMS {rms(moved):8.3f} {rms(expected):8.3f}"
                f"  apart {(moved - expected).norm() / expected.norm():.1e}"
            )


if __name__ == "__main__":
    main()
