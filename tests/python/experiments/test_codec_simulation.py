"""The simulation of experiments/offload_codec feeds AdamW what it says it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.fidelity.methods import WEIGHT_DECAY
from experiments.offload_codec import codec_bytes
from experiments.offload_codec.projectors import (
    DRAWS,
    ORTHONORMAL,
    core_shape,
    generator_of,
    relative_bias,
)
from experiments.offload_codec.simulate import Simulation, link_bytes, rounded

STEPS = 8


def model_of() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(45, 70), nn.LayerNorm(70), nn.Linear(70, 33, bias=False))


def train(method: str, ratio: float = 0.25, refresh: dict | None = None, seen: list | None = None):
    """Eight steps; `seen` gets the gradient that AdamW saw of the first matrix."""
    model, simulation = model_of(), Simulation()
    inputs = torch.randn(STEPS, 16, 45, generator=torch.Generator().manual_seed(4))
    with simulation.trainee(model, method, ratio, 1e-2, 0, refresh) as t:
        for x in inputs:
            model(x).square().mean().backward()
            if seen is not None:
                seen.append(model[0].weight.grad.clone())
            t.optimizer.step()
            t.optimizer.zero_grad()
    return model, simulation


def gradient(rows: int = 70, cols: int = 45) -> torch.Tensor:
    drawn = torch.randn(rows + cols, 40, generator=torch.Generator().manual_seed(5))
    return drawn[:rows] @ drawn[rows:].T


def test_identity_is_adamw_on_the_rounded_gradient_bit_for_bit():
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=WEIGHT_DECAY)
    for x in torch.randn(STEPS, 16, 45, generator=torch.Generator().manual_seed(4)):
        model(x).square().mean().backward()
        for p in model.parameters():
            p.grad = p.grad.bfloat16().float()
        optimizer.step()
        optimizer.zero_grad()
    simulated, _ = train("identity")
    for ours, theirs in zip(simulated.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_only_matrices_are_compressed_and_hooks_end_with_the_trainee():
    model, simulation = train("block_random")
    assert simulation.draws == 2
    model(torch.ones(1, 45)).sum().backward()
    assert not torch.equal(model[0].weight.grad, rounded(model[0].weight.grad))


@pytest.mark.parametrize("ratio", [0.25, 0.5])
@pytest.mark.parametrize("codec", ORTHONORMAL)
def test_columns_are_orthonormal(codec, ratio):
    pair = DRAWS[codec](gradient(), ratio, generator_of(0, "w", 0), 0)
    for side in pair:
        torch.testing.assert_close(side.T @ side, torch.eye(side.shape[1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("codec", DRAWS)
def test_cores_have_the_size_that_is_counted(codec):
    g = gradient()
    core = DRAWS[codec](g, 0.25, generator_of(0, "w", 0), 2).compress(g)
    assert tuple(core.shape) == core_shape(codec, 0.25, 70, 45)


def test_svd_keeps_as_much_as_any_pair_of_its_size_can():
    g = gradient()
    pair = DRAWS["svd"](g, 0.5, generator_of(0, "w", 0), 0)
    u, _, vt = torch.linalg.svd(g, full_matrices=False)
    dm, dn = core_shape("svd", 0.5, 70, 45)
    best = (u[:, :dm].T @ g @ vt[:dn].T).square().sum() / g.square().sum()
    assert relative_bias(g, pair).item() <= (1 - best).clamp(min=0).sqrt().item() + 1e-2


def test_learning_lowers_the_bias_and_leaves_four_nonzeros_a_row():
    g = gradient()
    drawn, learned = (DRAWS["sparse_learned"](g, 0.5, generator_of(0, "w", 0), steps)
                      for steps in (0, 60))  # fmt: skip
    assert relative_bias(g, learned).item() < 0.5 * relative_bias(g, drawn).item()
    for side in learned:
        assert ((side != 0).sum(dim=1) <= 4).all()
    formed = (learned.decompress(learned.compress(g)) - g).norm() / g.norm()
    assert relative_bias(g, learned).item() == pytest.approx(formed.item(), rel=1e-3)


@pytest.mark.parametrize(("refresh", "draws"), [(None, 1), ({"every": 3}, 3), ({"every": 1}, 8)])
def test_projectors_are_drawn_when_the_redraw_says(refresh, draws):
    seen: list[torch.Tensor] = []
    _, simulation = train("block_random", refresh=refresh, seen=seen)
    assert simulation.draws == 2 * draws
    # Fixed projectors keep every gradient in one space of dm x 45, so ranks do not add up.
    rank = torch.linalg.matrix_rank(torch.cat(seen, dim=1).double(), rtol=0.02).item()
    assert (rank <= core_shape("block_random", 0.25, 70, 45)[0]) == (draws == 1)


def test_adamw_sees_the_projected_gradient_in_bf16():
    plain: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []
    train("adamw", seen=plain)
    train("block_random", seen=seen)
    pair = DRAWS["block_random"](plain[0], 0.25, generator_of(0, "0.weight", 0), 0)
    assert torch.equal(seen[0], rounded(pair.decompress(rounded(pair.compress(plain[0])))))


def test_bytes_are_those_of_the_formula():
    assert codec_bytes.disk_bytes("identity", 1, 4, "gradient") == 24 + 4 * 4
    assert codec_bytes.disk_bytes("block_random", 0.25, 16, "gradient") == 28
    assert codec_bytes.disk_bytes("block_random", 0.5, 16, "core") == 24
    assert codec_bytes.d2h_bytes("identity", 1, 4) == 8
    assert codec_bytes.d2h_bytes("svd", 0.25, 4) == 2 / 16
    matrix = nn.Linear(64, 128, bias=False)
    assert link_bytes(matrix, "block_random", 0.25) == 64 * 128 * (2 + 2 / 16)
    assert link_bytes(matrix, "identity", 0.25) == 64 * 128 * 4
