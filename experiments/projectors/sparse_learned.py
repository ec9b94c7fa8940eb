"""Measure whether learning lowers the bias of the paper's projectors on unseen gradients.

    python -m experiments.projectors.sparse_learned            # writes sparse_learned.json
    python -m experiments.projectors.sparse_learned --table    # prints it for the README

The script skips the rows that the file already has.

The gradients are those of the quickstart model on prose. The projectors learn from one gradient,
the mean over a few batches. The other gradients, from as many batches each, share no sequence with
it or with one another. The product's optimizer learns and measures: its engine receives the
gradients as calibration, and a threshold that no bias reaches turns a calibration into a
measurement alone. Two references stand beside the results: the theoretical bias of random
projectors, and the singular directions of the calibration gradient, which no pair of this core size
can beat there.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial
from pathlib import Path

import torch
from sluiceway import Refresh, SubspaceAdamW
from sluiceway.text.batches import Batches

from experiments.fidelity.methods import block_weights
from experiments.fidelity.tasks import load_model, load_text
from experiments.harness import read_rows, write_rows

RESULTS = Path(__file__).with_suffix(".json")
MICRO_BATCH = 4
HELD_OUT = 4  # Held-out gradients.
LEARN_STEPS = (0, 30, 100, 300)  # 0: the random pair; 100: the default.
NNZ, SHARES, BATCHES = (4, 8), (2, 4), (1, 8)

Gradients = dict[str, torch.Tensor]


def gradients(model: torch.nn.Module, batches: Batches, positions: range) -> Gradients:
    """Return the mean gradients over the batches at `positions`, by the name of the weight."""
    model.zero_grad()
    for position in positions:
        loss = model(**batches[position].inputs, use_cache=False).loss
        (loss / len(positions)).backward()
    return {name: p.grad.clone() for name, p in block_weights(model)}


def calibrate(optimizer: SubspaceAdamW, given: Gradients) -> dict[str, float]:
    """Give every weight its gradient as calibration; return the relative biases afterwards."""
    engine, biases = optimizer.engine, {}
    engine.begin_calibration()
    for index, weight in enumerate(optimizer.weights):
        engine.take_stats()
        gradient = given[weight.name]
        engine.add_gradient(index, gradient, gradient, optimizer.device.compute())
        biases[weight.name] = engine.take_stats()["bias_mean"]
    engine.end_calibration()
    return biases


def measured(model: torch.nn.Module, nnz: int, d: int, steps: int, known: Gradients,
             held_out: list[Gradients]) -> dict:  # fmt: skip
    """Learn for `steps` steps on `known`, then measure on every gradient."""

    def optimizer(refresh: Refresh) -> SubspaceAdamW:
        names = [name for name, _ in block_weights(model)]
        return SubspaceAdamW(model, codec="sparse_learned", nnz=nnz, d=d, residual="none",
                             target=names, refresh=refresh)  # fmt: skip

    with optimizer(Refresh(every=1, threshold=0.0, learn_steps=steps)) as learning:
        calibrate(learning, known)
        state = learning.state_dict()
    with optimizer(Refresh(every=1, threshold=math.inf)) as measuring:
        measuring.load_state_dict(state)
        return {"calibration": calibrate(measuring, known),
                "held_out": [calibrate(measuring, g) for g in held_out]}  # fmt: skip


def orthonormal_bias(g: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> float:
    """Relative bias of a pair with orthonormal columns, where |b|^2 = |G|^2 - |P^T G Q|^2."""
    kept = (p.T @ g.double() @ q).square().sum() / g.double().square().sum()
    return math.sqrt(max(0.0, 1 - kept.item()))


def singular(d: int, known: Gradients, held_out: list[Gradients]) -> dict:
    """Measure the leading d singular directions of each weight's gradient in `known`."""
    pairs = {}
    for name, g in known.items():
        u, _, vt = torch.linalg.svd(g.double(), full_matrices=False)
        pairs[name] = (u[:, :d], vt[:d].T)

    def biases(of: Gradients) -> dict[str, float]:
        return {name: orthonormal_bias(g, *pairs[name]) for name, g in of.items()}

    return {"calibration": biases(known), "held_out": [biases(g) for g in held_out]}


def random_bias(m: int, n: int, d: int) -> float:
    """Bias of a random (d, r)-sparse pair with values of +-1/sqrt(r), for any r."""
    return math.sqrt((1 + m / d) * (1 + n / d) - 1)


def in_theory(d: int, known: Gradients) -> dict:
    """Compute the biases of random pairs."""
    biases = {name: random_bias(*g.shape, d) for name, g in known.items()}
    return {"calibration": biases, "held_out": [biases]}


def run(rows: list[dict]) -> None:
    """Measure the missing rows; write the file after each."""
    model = load_model("quickstart")
    batches = Batches(load_text("prose").train, MICRO_BATCH, 0)
    width = model.config.hidden_size  # The smaller side of every weight: n of the paper's d.
    for count in BATCHES:
        positions = [range(i * count, (i + 1) * count) for i in range(1 + HELD_OUT)]
        known, *held_out = (gradients(model, batches, p) for p in positions)
        for share in SHARES:
            d = width // share
            pairs = {(f"sparse r={nnz}", steps): partial(measured, model, nnz, d, steps)
                     for nnz in NNZ for steps in LEARN_STEPS}  # fmt: skip
            pairs["random, in theory", None] = lambda g, _, d=d: in_theory(d, g)
            pairs["svd", None] = partial(singular, d)
            for (pair, steps), biases in pairs.items():
                key = {"batches": count, "d": f"n/{share}", "pair": pair, "learn_steps": steps}
                if any(key.items() <= row.items() for row in rows):
                    continue
                found = biases(known, held_out)
                rows.append({**key, "calibration": listed(found["calibration"]),
                             "held_out": [listed(of) for of in found["held_out"]]})  # fmt: skip
                write_rows(RESULTS, rows, weights=list(known))
                print(key, flush=True)


def listed(biases: dict[str, float]) -> list[float]:
    """List biases in the order of the weights."""
    return [round(bias, 5) for bias in biases.values()]


def means(row: dict) -> tuple[float, list[float]]:
    """Return the mean bias over weights: on the calibration gradient, and on each held-out one."""
    return statistics.mean(row["calibration"]), [statistics.mean(of) for of in row["held_out"]]


def cells(rows: list[dict]) -> list[str]:
    """Format the calibration and held-out cells; one number for each row."""
    known = " / ".join(f"{means(row)[0]:.3f}" for row in rows)
    unseen = " / ".join(f"{statistics.mean(means(row)[1]):.3f}" for row in rows)
    return [known, unseen]


def table(rows: list[dict]) -> str:
    """Format the rows as Markdown; learned pairs have a number for each of LEARN_STEPS."""
    steps = " / ".join(map(str, LEARN_STEPS))
    lines = [f"| batches | d | pair | calibration, {steps} steps | held out, {steps} steps |",
             "|---|---|---|---|---|"]  # fmt: skip
    grouped: dict[tuple, list[dict]] = {}
    for row in rows:
        grouped.setdefault((row["batches"], row["d"], row["pair"]), []).append(row)
    lines += [f"| {' | '.join([*map(str, key), *cells(same)])} |" for key, same in grouped.items()]
    spread = max((max(of) - min(of)) / (max(of) + min(of)) for _, of in map(means, rows))
    return "\n".join([*lines, "", f"Held-out gradients differ by at most +-{spread:.1%} in a row."])


def main() -> None:
    """Measure, or print the recorded rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print sparse_learned.json")
    args = parser.parse_args()
    rows = read_rows(RESULTS)
    torch.set_num_threads(1)  # A second thread does not speed up weights of this size.
    if not args.table:
        run(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
