"""The bias of fused layers is that of the gradient that autograd forms in a twin beside them."""

from __future__ import annotations

import json
import math
from itertools import chain

import pytest
import sluiceway as sw
import torch
from conftest import read_lines
from sluiceway.optim.subspace.fused.sampled_bias import SampledBias, sum_of_squares
from small_models import Checkpointed, CheckpointedReentrant, Stack, make
from test_fused import EVERY, Convolved, Odd, fused
from torch import nn
from torch.nn import functional
from twins import train


def loss(model: nn.Module, step: int, rows: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 16, generator=generator)
    y = torch.randn(rows, 8, generator=generator)
    return functional.mse_loss(model(x).float(), y)


def projector(opt: sw.SubspaceAdamW, number: int, side: str, rows: int) -> torch.Tensor:
    """P or Q in double, which is what the identity matrix is projected to."""
    described = opt.engine.describe(number)
    out = torch.empty(rows, described["core_rows" if side == "p" else "core_cols"])
    scratch = torch.empty(described["project_scratch_elems"])
    opt.engine.project(number, side, torch.eye(rows), out, scratch, opt.device.compute())
    return out.double()


def true_bias(opt: sw.SubspaceAdamW, name: str, gradient: torch.Tensor) -> float:
    number = [weight.name for weight in opt.weights].index(name)
    g = gradient.double()
    p, q = (projector(opt, number, side, rows) for side, rows in zip("pq", g.shape, strict=True))
    return float((p @ p.t() @ g @ q @ q.t() - g).norm() / g.norm())


def biases(kind: type[nn.Module], rows: int, **arguments: object) -> dict[str, tuple]:
    """Measured and true bias of every fused weight, on the first gradients."""
    model, plain = make(kind), make(kind)
    with fused(model, **arguments) as opt:
        loss(model, 0, rows).backward()
        opt.step()
        opt.zero_grad()
        assert opt.fused_linears.bias.by_weight == {}  # Nothing waits for what is measured.
        loss(model, 1, rows).backward()
        opt.step()
        loss(plain, 0, rows).backward()
        found = opt.fused_linears.bias.by_weight
        return {n: (found[n], true_bias(opt, n, plain.get_parameter(n).grad)) for n in found}


@pytest.mark.parametrize(
    ("kind", "arguments", "count"),
    [
        (Stack, {}, 4),
        (Stack, {"ratio": 0.25}, 4),
        (Stack, {"codec": "sparse_random", "nnz": 1}, 4),
        (Stack, {"codec": "sparse_random", "nnz": 3}, 4),
        (Checkpointed, {}, 4),
        (CheckpointedReentrant, {}, 4),
        (Convolved, EVERY, 3),
        (Convolved, EVERY | {"codec": "sparse_random", "d": 16}, 3),
    ],
)
def test_with_all_tokens_it_is_the_bias_of_the_gradient(kind, arguments, count):
    found = biases(kind, 24, **arguments)
    assert len(found) == count
    for name, (measured, true) in found.items():
        assert measured == pytest.approx(true, rel=1e-4), name


def test_a_sample_of_the_tokens_comes_close():
    for measured, true in biases(Stack, 4096, ratio=0.25).values():
        assert measured == pytest.approx(true, rel=0.05)
        assert measured != pytest.approx(true, rel=1e-6)


def test_samples_of_all_choices_have_the_squares_of_all_tokens_on_average():
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.randn(5, n, generator=generator, dtype=torch.float64) for n in (3, 4))
    y, x = y + 1, x + 1  # With a mean, so that pairs of different tokens count.

    true = float((y.t() @ x).square().sum())
    assert float(sum_of_squares((y, x), 5)) == pytest.approx(true, rel=1e-5)
    pairs = [[a, b] for a in range(5) for b in range(5) if a != b]
    found = [float(sum_of_squares((y[pair], x[pair]), 5)) for pair in pairs]
    assert sum(found) / len(found) == pytest.approx(true, rel=1e-5)
    assert max(found) > 1.1 * true


def test_layers_used_twice_and_other_backwards_are_measured_each(monkeypatch):
    model = make(Odd)
    with fused(model, **EVERY) as opt:
        noted = []
        note = opt.fused_linears.bias.note
        monkeypatch.setattr(
            opt.fused_linears.bias, "note", lambda name, b: (noted.append(name), note(name, b))
        )
        for _ in range(2):
            loss(model, 0).backward()
        opt.step()
        assert sorted(noted) == sorted(["enter.weight", "leave.weight", "twice.weight"] * 2
                                       + ["twice.weight"] * 2)  # fmt: skip


def test_every_layer_has_its_turn_and_none_twice_before_all_had_one():
    bias = SampledBias()
    places = [bias.join() for _ in range(10)]
    turns = [[place for place in places if bias.due(place, step)] for step in range(5)]
    assert [len(turn) for turn in turns] == [4] * 5
    assert sorted(chain(*turns[:2])) == list(range(8))
    assert sorted(chain(*turns)) == sorted([*range(10), *range(10)])


def test_measuring_changes_no_bit_of_a_run(monkeypatch):
    def trained() -> nn.Module:
        model = make()
        with fused(model) as opt:
            train(model, opt, 5)
        return model

    measured = trained()
    monkeypatch.setattr(SampledBias, "due", lambda self, place, step: False)
    plain = trained()
    pairs = zip(measured.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_gradient_that_is_not_finite_or_zero_has_none():
    bias = SampledBias()
    bias.note("a", torch.tensor(math.nan))
    bias.note("b", torch.tensor(0.5))
    bias.end_step()
    assert (bias.last, bias.summary()) == (None, None)
    bias.end_step()
    assert (bias.last, bias.by_weight) == (0.5, {"b": 0.5})
    bias.end_step()
    assert (bias.last, bias.summary()) == (None, {"mean": 0.5, "weights": 1})


def test_a_run_reports_it(sluiceway, small_model, write_config, tmp_path):
    engine = {"kind": "subspace", "fused": True, "ratio": 0.5}
    config = write_config(small_model, engine=engine, train={"steps": 6})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    lines = [line for line in read_lines(tmp_path / "out") if line["step"] > 0]
    found = [line["subspace"]["bias_mean"] for line in lines]
    assert found[0] is None
    # Orthonormal columns of a random block see f^2 of a gradient's square on average.
    assert found[1:] == pytest.approx([math.sqrt(1 - 0.5**2)] * 5, abs=0.1)
    bias = json.loads((tmp_path / "out/summary.json").read_text())["bias"]
    assert bias["weights"] == 14
    assert bias["mean"] == pytest.approx(sum(found[1:]) / 5, rel=0.05)
