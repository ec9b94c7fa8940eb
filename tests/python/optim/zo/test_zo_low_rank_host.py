"""ZoSgd along directions of low rank, of weights in host memory: the bits of the other tier."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import sluiceway
import torch
from torch import nn
from zo_follow import follow
from zo_models import decoder, of_dtype, on_host, own_memory, zo_ids, zo_loss, zo_train
from zo_oracle import low_rank_oracle_of


def host(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return on_host(model, noise="lowrank", **options)


@pytest.mark.parametrize(
    ("directions", "weight_decay", "seed", "rank", "period"),
    [(1, 0.0, 0, 4, 9), (3, 0.5, 2**40 + 1, 3, 7)],
)
def test_losses_and_weights_are_the_oracles(directions, weight_decay, seed, rank, period) -> None:
    ours, theirs = decoder(), decoder()
    opt = host(
        ours, lr=0.02, weight_decay=weight_decay, directions=directions, seed=seed, rank=rank,
        period=period,
    )  # fmt: skip
    oracle = low_rank_oracle_of(theirs, rank, period, seed, directions, weight_decay)
    base = own_memory(ours)
    follow(opt, ours, oracle, every=10)
    assert all(map(torch.equal, own_memory(ours), base))  # Nothing was written to.
    opt.close()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def test_weights_of_16_bits_stay_the_base() -> None:
    ours, theirs = (of_dtype(decoder(), torch.bfloat16) for _ in range(2))
    opt = host(ours, lr=0.01, weight_decay=0.1, seed=0, rank=2, period=15)
    follow(opt, ours, low_rank_oracle_of(theirs, 2, 15, 0, 1, 0.1), every=10)


@pytest.mark.parametrize(("depth", "lanes"), [(2, 1), (8, 4)])
@pytest.mark.parametrize("directions", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiers_give_the_same_bits(depth, lanes, directions, dtype) -> None:
    options = {"lr": 0.05, "weight_decay": 0.3, "directions": directions, "rank": 3, "period": 4}
    models = [of_dtype(decoder(), dtype) for _ in range(2)]
    opts = [
        host(models[0], depth=depth, perturb_lanes=lanes, resident=300, **options),
        sluiceway.ZoSgd(models[1], noise="lowrank", **options),
    ]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 13) for opt in opts]
    for step in range(13):
        batches = [zo_ids(2 * step), zo_ids(2 * step + 1)]
        closures = [[lambda i=ids, m=model: zo_loss(m, i) for ids in batches] for model in models]
        for method in ("step", "evaluate"):
            losses = [getattr(opt, method)(each) for opt, each in zip(opts, closures, strict=True)]
            assert losses[0] == losses[1]
        states = [model.state_dict() for model in models]
        assert all(torch.equal(theta, states[1][name]) for name, theta in states[0].items())
        for schedule in schedules:
            schedule.step()


def test_no_number_of_updates_is_too_many_and_all_are_made_again_from_the_log() -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    begun = copy.deepcopy(model)
    opt = host(model, lr=1e-3, directions=350, period=2)
    for _ in range(3):
        opt.step(lambda: model(x).sum())
    again = host(begun, lr=1e-3, directions=350, period=2)
    again.load_state_dict(opt.state_dict())
    theta = model.state_dict()
    assert all(torch.equal(other, theta[name]) for name, other in begun.state_dict().items())
    assert again.committed_steps == 3


@pytest.mark.parametrize("resident", [0, 1 << 20])
def test_a_period_without_room_is_refused_and_the_weights_are_still_there(resident: int) -> None:
    model = decoder()
    budget = sluiceway.Budget(device=60_000)
    opt = host(model, lr=0.02, period=1, budget=budget, resident=resident)
    with pytest.raises(sluiceway.OutOfMemory, match=r"periods of low-rank noise of .* bytes"):
        zo_train(opt, model, range(100))
    made, theta = opt.committed_steps, copy.deepcopy(model.state_dict())
    # What is resident gives way: as many periods fit as if nothing was.
    assert 15 < made < 100
    opt.rollback(made - 1)
    opt.step(lambda: zo_loss(model, zo_ids(made - 1)))
    assert all(torch.equal(p, theta[name]) for name, p in model.state_dict().items())
    opt.close()
    assert all(torch.equal(p, theta[name]) for name, p in model.named_parameters())


def test_a_run_that_does_not_fit_leaves_no_log(tmp_path: Path) -> None:
    for budget in (100, 400):
        with pytest.raises(sluiceway.OutOfMemory):
            host(decoder(), path=tmp_path, budget=sluiceway.Budget(device=budget))
        assert not list(tmp_path.iterdir())
    with host(decoder(), path=tmp_path, lr=0.02) as opt:
        assert opt.committed_steps == 0
