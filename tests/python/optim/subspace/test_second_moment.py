"""A factored second moment of the core: what it saves, and that it comes back bit for bit."""

from __future__ import annotations

import copy

import pytest
import sluiceway as sw
import torch
from small_models import make, same_bits
from torch import nn
from twins import LR, train


def subspace(model, **arguments):
    return sw.SubspaceAdamW(model, lr=LR, codec="block_random", **arguments)


def host_bytes(**arguments):
    with subspace(make(), **arguments) as opt:
        return [w["host_bytes"] for w in opt.describe()]


def test_it_takes_the_means_of_rows_and_columns_in_place_of_a_core():
    core = 64 * 64
    means = roots = 64 + 64
    assert host_bytes(norm_mode="exact", second_moment="full")[0] == 4 * (core + core)
    assert host_bytes(norm_mode="exact", second_moment="factored")[0] == 4 * (core + means + roots)


@pytest.mark.parametrize("norm_mode", ["exact", "speculative"])
@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_a_save_goes_on_bit_for_bit(norm_mode, wire):
    arguments = {"second_moment": "factored", "norm_mode": norm_mode, "wire": wire}
    whole, halved = make(), make()
    with subspace(whole, **arguments) as opt:
        train(whole, opt, 5)
    with subspace(halved, **arguments) as opt:
        train(halved, opt, 2)
        state, weights = copy.deepcopy(opt.state_dict()), copy.deepcopy(halved.state_dict())
    first = next(s for s in state["state"].values() if "codec" in s)
    assert first["exp_avg"].shape == (64, 64)
    assert first["exp_avg_sq"].shape == (128,)
    resumed = make()
    resumed.load_state_dict(weights)
    with subspace(resumed, **arguments) as opt:
        opt.load_state_dict(state)
        train(resumed, opt, 3, first=2)
    assert same_bits(resumed, whole)


@pytest.mark.parametrize("tier", ["host", "device"])
def test_the_step_that_fits_a_projector_is_no_longer_than_any_other(tier):
    torch.manual_seed(0)
    model, lr = nn.Linear(256, 256, bias=False), 1e-3
    before = model.weight.detach().clone()
    falling = torch.logspace(0, -4, 256)  # Of the singular values of a gradient.
    inputs = torch.linalg.qr(torch.randn(256, 256))[0] * falling
    arguments = {"codec": "svd", "ratio": 0.5, "residual": "none", "second_moment": "factored"}
    with sw.SubspaceAdamW(model, lr=lr, tier=tier, weight_decay=0.0, **arguments) as opt:
        (model(inputs) * torch.linalg.qr(torch.randn(256, 256))[0]).sum().backward()
        opt.step()
        opt.synchronize()
    assert (model.weight.detach() - before).square().mean().sqrt() <= 1.01 * lr


def test_it_is_another_optimizer_and_its_state_is_not_taken_for_the_other():
    full, factored = make(), make()
    with subspace(full, second_moment="full") as opt:
        train(full, opt, 3)
        state = opt.state_dict()
    with subspace(factored, second_moment="factored") as opt:
        train(factored, opt, 3)
        with pytest.raises(sw.InvalidArgument, match="second_moment was 'full' when it was saved"):
            opt.load_state_dict(state)
    assert not same_bits(full, factored)


def test_a_word_that_it_does_not_know_is_refused():
    with pytest.raises(sw.InvalidArgument, match="second_moment is 'half', expected auto, full"):
        subspace(make(), second_moment="half")


def second_moments_around_a_refresh(transport):
    """Means of the first weight whose projectors are replaced, before and after that step."""
    model, refresh = make(), sw.Refresh(every=2, transport=transport)
    with sw.SubspaceAdamW(
        model, lr=LR, codec="svd", ratio=0.25, second_moment="factored", refresh=refresh
    ) as opt:
        train(model, opt, 3)
        opt.param_groups[0]["betas"] = (0.9, 1 - 1e-6)  # A step itself changes it by nothing.
        for step in range(3, 12):
            before = opt.state_dict()["state"]
            train(model, opt, 1, first=step)
            after = opt.state_dict()["state"]
            for number, state in after.items():
                if "codec" in state and not torch.equal(state["codec"], before[number]["codec"]):
                    return before[number]["exp_avg_sq"], state["exp_avg_sq"]
    raise AssertionError("no projector was replaced")


@pytest.mark.parametrize("transport", ["keep", "reset", "projected"])
def test_a_refresh_carries_it_over(transport):
    before, after = second_moments_around_a_refresh(transport)
    assert before.shape == after.shape == (128,)
    assert before.min() > 0
    change = ((after - before).norm() / before.norm()).item()
    if transport == "keep":
        assert change < 0.01
    elif transport == "reset":
        assert after.norm() < 0.01 * before.norm()
    else:  # Into other axes of nearly the same space: no larger, and most of it is found again.
        assert change > 0.05
        assert 0.2 * before.sum() < after.sum() <= 1.01 * before.sum()
        assert after.min() > 0


@pytest.mark.parametrize("norm_mode", ["exact", "speculative"])
def test_a_gradient_that_clipping_tames_does_not_overflow_in_it(norm_mode):
    torch.manual_seed(0)
    model = nn.Linear(256, 256, bias=False)
    arguments = {"second_moment": "factored", "norm_mode": norm_mode, "max_norm": 1.0}
    with subspace(model, residual="none", **arguments) as opt:
        for scale in (1.0, 1e22, 1.0):  # The squares of the second are infinite in f32.
            (scale * model(torch.randn(8, 256)).square().mean()).backward()
            opt.step()
            opt.zero_grad()
            assert not opt.overflowed
        opt.synchronize()
        assert torch.isfinite(model.weight).all()
