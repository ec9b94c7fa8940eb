"""Outputs of layers with low-rank noise, and g of a step, against double precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import sluiceway
import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D
from zo_models import decoder, zo_ids
from zo_oracle import low_rank_oracle_of

U32, U16 = 2.0**-24, 2.0**-8  # Half an ulp of 1, of float32 and of bfloat16.


def low_rank(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, noise="lowrank", **options)


# ---- One layer ----


class Layers(nn.Module):
    """The same input for each; m x n weights of odd sizes."""

    def __init__(self, m: int, n: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(n, m), nn.Linear(n, m, bias=False), Conv1D(m, n)])
        nn.init.normal_(self.layers[2].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x).float().square().mean() for layer in self.layers)


def outputs_of_step(opt: sluiceway.ZoSgd, model: nn.Module, x: torch.Tensor) -> list[list]:
    """Inputs and outputs that a hook of each layer sees, in the order of the forward passes."""
    seen = [[] for _ in model.layers]
    handles = [
        layer.register_forward_hook(lambda _, args, y, of=of: of.append((args[0], y.clone())))
        for layer, of in zip(model.layers, seen, strict=True)
    ]
    # What a layer is given is what its hooks make of it.
    handles.append(model.layers[0].register_forward_pre_hook(lambda _, args: (args[0] * 3,)))
    opt.step(lambda: model(x))
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.filterwarnings("ignore:.*norms and biases")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("m", "n", "rank", "directions"), [(31, 17, 3, 1), (1, 53, 1, 3), (13, 1, 17, 2)]
)
def test_outputs_are_within_the_stated_bound_of_those_in_double(
    m, n, rank, directions, dtype
) -> None:
    model = Layers(m, n)
    for layer in model.layers:
        layer.weight.data = layer.weight.data.to(dtype)
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(dtype)
    x = torch.randn(2, 5, n).to(dtype)
    opt = low_rank(model, lr=0.02, rank=rank, period=2, directions=directions, seed=9)
    oracle = low_rank_oracle_of(copy.deepcopy(model), rank, 2, 9, directions)
    k = n + rank + 2
    gamma = k * U32 / (1 - k * U32)
    for _ in range(3):
        theta = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
        for number, seen in enumerate(outputs_of_step(opt, model, x)):
            weight, name = theta[f"layers.{number}.weight"], f"layers.{number}.weight"
            bias = theta.get(f"layers.{number}.bias")
            for number_of_pass, (given, found) in enumerate(seen):
                direction, sign = number_of_pass // 2, (1, -1)[number_of_pass % 2]
                u, v = oracle.factors(name, direction)
                moved = [weight, sign * 1e-3 * (u.T @ v)]
                sizes = [np.abs(weight), 1e-3 * (np.abs(u).T @ np.abs(v))]
                if number == 2:  # Inputs are its rows.
                    moved, sizes = [w.T for w in moved], [s.T for s in sizes]
                rows = given.double().numpy()
                expected = sum(rows @ w.T for w in moved)
                added = [np.abs(rows) @ s.T for s in sizes]
                if bias is not None:
                    z = oracle._z(f"layers.{number}.bias", direction).astype(np.float64)
                    expected = expected + bias + sign * 1e-3 * z
                    added[0] = added[0] + np.abs(bias) + 1e-3 * np.abs(z)
                bound = (gamma + U32) * sum(added)
                if dtype is torch.bfloat16:
                    bound = bound + U16 * (3 * added[0] + 4 * added[1])
                assert (np.abs(found.double().numpy() - expected) <= bound).all()
        oracle.step_number += 1


# ---- Steps ----


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Compute the loss in the type of the model."""
    return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize(
    ("directions", "decay", "rank", "period"), [(1, 0.0, 4, 50), (3, 0.5, 3, 4), (1, 0.5, 1, 1)]
)
def test_g_is_that_of_double_and_weights_follow_from_it(directions, decay, rank, period) -> None:
    model = decoder()
    oracle = low_rank_oracle_of(copy.deepcopy(model), rank, period, 5, directions, decay)
    opt = low_rank(
        model, lr=0.02, weight_decay=decay, directions=directions, seed=5, rank=rank,
        period=period,
    )  # fmt: skip
    seen = []
    for step in range(10):
        ids = zo_ids(step)
        expected = oracle.gradients_in_double(lambda m: loss_of(m, ids))  # noqa: B023
        opt.step(lambda: loss_of(model, ids))  # noqa: B023
        found = opt.stats()["zo"]["g"]
        for g, (plus, minus, exact) in zip(found, expected, strict=True):
            assert abs(g - exact) <= 8 * U32 * (plus + minus) / 2e-3
            seen.append(abs(exact))
        oracle.move(found, [0.02, 0.02])
        for p, q in zip(model.parameters(), oracle.model.parameters(), strict=True):
            assert torch.equal(p, q)
    assert np.median(seen) > 0.1  # Of which the bound is a small part.


# ---- Whoever else reads a weight ----


class Reading(nn.Module):
    """Weights of linear layers that are read by more than their own product."""

    class Member(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.tied = nn.Linear(6, 6)
            self.tied.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attention(x, x, x, need_weights=False)[0]
            y = functional.linear(input=x, weight=self.first.weight) @ self.second.weight.T
            both = torch.cat([self.first.weight, self.second.weight]).square().mean()
            return self.tied(torch.tanh(y)) + self.second(self.first.weight[0] * x) * both

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Member() for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.head(x), self.head.weight.T).square().mean()


@pytest.mark.parametrize("directions", [1, 2])
def test_whoever_reads_a_weight_finds_it_perturbed(directions: int) -> None:
    torch.manual_seed(3)
    model, x = Reading(), torch.randn(4, 5, 6)
    oracle = low_rank_oracle_of(copy.deepcopy(model), 4, 2, 2, directions)
    expected = oracle.gradients_in_double(lambda m: m(x.to(m.head.weight.dtype)))
    opt = low_rank(model, lr=0.0, seed=2, directions=directions)
    opt.step(lambda: model(x))
    for g, (plus, minus, exact) in zip(opt.stats()["zo"]["g"], expected, strict=True):
        assert abs(g - exact) <= 16 * U32 * (plus + minus) / 2e-3
        assert abs(exact) > 1000 * U32 * (plus + minus) / 2e-3
