"""weight_rates="rms": each compressed weight at a rate of its own size, core and residual alike."""

from __future__ import annotations

import copy

import pytest
import sluiceway as sw
import torch
from sluiceway.optim.subspace.choices import rate_lines
from sluiceway.optim.subspace.weight_rates import weight_factors
from small_models import WIDTH, batch, make, same_bits
from torch import nn
from twins import LR, train

DECAY = 0.1


def uneven(kind=None, **arguments):
    """Weights of different sizes, as training would leave them."""
    model = make(kind, **arguments) if kind else make()
    with torch.no_grad():
        for number, p in enumerate(p for p in model.parameters() if p.dim() >= 2):
            p.mul_(1 + number / 3)
    return model


def by_rms(model, **arguments):
    options = {"lr": LR, "weight_decay": DECAY, "weight_rates": "rms", **arguments}
    return sw.SubspaceAdamW(model, **options)


def expected_factors(matrices):
    rms = [m.detach().double().square().mean().sqrt().item() for m in matrices]
    sizes = [m.numel() for m in matrices]
    mean = sum(r * n for r, n in zip(rms, sizes, strict=True)) / sum(sizes)
    return [r / mean for r in rms]


@pytest.mark.parametrize("codec", ["block_random", "svd", "none"])
@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_it_is_a_group_for_each_weight_at_its_rate_with_the_decay_of_all(codec, accumulate):
    ours, theirs = uneven(), uneven()
    options = {"codec": codec, "accumulate": accumulate}
    with by_rms(ours, **options) as opt:
        names = [w["name"] for w in opt.describe()]
        train(ours, opt, 4)
        factors = opt.rate_factors
    large = [dict(theirs.named_parameters())[name] for name in names]
    assert factors == pytest.approx(expected_factors(large), rel=1e-6)
    assert max(factors) > 1.2
    assert min(factors) < 0.8
    groups = [
        {"params": [p], "lr": k * LR, "weight_decay": DECAY / k}
        for p, k in zip(large, factors, strict=True)
    ]
    chosen = {id(p) for p in large}
    groups.append({"params": [p for p in theirs.parameters() if id(p) not in chosen]})
    options["weight_rates"] = "equal"
    equal = sw.SubspaceAdamW(theirs, lr=LR, weight_decay=DECAY, param_groups=groups, **options)
    with equal as opt:
        train(theirs, opt, 4)
    assert same_bits(ours, theirs)


def test_equal_is_one_rate():
    ours, theirs = uneven(), uneven()
    with by_rms(ours, weight_rates="equal") as opt:
        train(ours, opt, 3)
        assert rate_lines(opt.rate_factors) == []
    with by_rms(theirs) as opt:
        (line,) = rate_lines(opt.rate_factors)
        assert f"{min(opt.rate_factors):.2f} to {max(opt.rate_factors):.2f} of the group's" in line
        train(theirs, opt, 3)
    assert not same_bits(ours, theirs)


def test_a_schedule_moves_all_rates_alike():
    model = uneven()
    with by_rms(model) as opt:
        before = [hyper[0] for hyper in opt._hypers(0.0)]
        opt.param_groups[0]["lr"] *= 0.5
        assert [hyper[0] for hyper in opt._hypers(0.0)] == pytest.approx([x / 2 for x in before])


def test_a_save_goes_on_with_the_rates_that_training_began_with():
    whole, halved = uneven(), uneven()
    with by_rms(whole) as opt:
        train(whole, opt, 5)
    with by_rms(halved) as opt:
        train(halved, opt, 2)
        state, weights = copy.deepcopy(opt.state_dict()), copy.deepcopy(halved.state_dict())
    resumed = uneven()
    resumed.load_state_dict(weights)
    with torch.no_grad():
        resumed.blocks[0].up.weight.mul_(3)  # Its size as it is found says another rate.
    with by_rms(resumed) as opt:
        found = opt.rate_factors
        resumed.load_state_dict(weights)
        opt.load_state_dict(state)
        assert opt.rate_factors != found
        train(resumed, opt, 3, first=2)
    assert same_bits(resumed, whole)


@pytest.mark.parametrize("broken", [None, [1.0], [0.0] * 4, ["1"] * 4, [float("nan")] * 4])
def test_a_state_with_other_rates_than_numbers_is_refused(broken):
    with by_rms(uneven()) as opt:
        state = opt.state_dict()
        state["sluiceway"]["rate_factors"] = broken
        before = opt.rate_factors
        with pytest.raises(sw.InvalidArgument, match="expected a positive number for each of 4"):
            opt.load_state_dict(state)
        assert opt.rate_factors == before


def test_a_state_of_an_earlier_version_has_one_rate():
    model = uneven()
    with by_rms(model, weight_rates="equal") as opt:
        state = opt.state_dict()
        del state["sluiceway"]["rate_factors"], state["sluiceway"]["arguments"]["weight_rates"]
        opt.load_state_dict(state)
        assert set(opt.rate_factors) == {1.0}
    with by_rms(model) as opt, pytest.raises(sw.InvalidArgument, match="weight_rates was 'equal'"):
        opt.load_state_dict(state)


class Experts(nn.Module):
    """A batch of matrices, of which each has a size of its own."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, WIDTH)
        self.batch = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / 16)
        with torch.no_grad():
            self.batch[1] *= 2

    def forward(self, x):
        x = self.enter(x)
        return sum(torch.tanh(x @ w) for w in self.batch)[:, :8]


def test_slices_of_a_batch_have_a_rate_each():
    model = Experts()
    with by_rms(model) as opt:
        assert opt.rate_factors == pytest.approx(expected_factors(list(model.batch)), rel=1e-6)
        train(model, opt, 2)


def test_an_embedding_keeps_the_rate_of_its_group():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(600, WIDTH)
            self.up = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.up(self.words((x[:, 0].abs() * 100).long().clamp(max=599)))[:, :8]

    model = Words()
    with by_rms(model, embeddings="identity") as opt:
        factors = dict(zip((w["name"] for w in opt.describe()), opt.rate_factors, strict=True))
        assert factors == {"words.weight": 1.0, "up.weight": pytest.approx(1.0)}
        x, _ = batch(0)
        model(x).square().mean().backward()
        opt.step()


def test_factors_are_bounded_and_zeros_say_nothing():
    ones = torch.ones(64, 64)
    assert weight_factors([]) == []
    assert weight_factors([torch.zeros(4, 4)]) == [1.0]
    assert weight_factors([ones, 0 * ones, ones]) == [1.0, 1.0, 1.0]
    for odd in (float("inf"), float("nan")):
        assert weight_factors([ones, odd * ones, 3 * ones]) == pytest.approx([0.5, 1.0, 1.5])
    assert weight_factors([1e-9 * ones] + [ones] * 9)[0] == 0.25
    assert weight_factors([100 * ones] + [ones] * 99)[0] == 4.0
    halves = [ones.bfloat16(), (3 * ones).bfloat16()]
    assert weight_factors(halves) == pytest.approx([0.5, 1.5])


def test_a_word_that_it_does_not_know_is_refused():
    with pytest.raises(
        sw.InvalidArgument, match="weight_rates is 'lars', expected auto, equal or rms"
    ):
        by_rms(make(), weight_rates="lars")
