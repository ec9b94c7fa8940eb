"""ZoSgd along directions of low rank, of weights on disk: the bits of tier host, one base."""

from __future__ import annotations

from pathlib import Path

import pytest
import sluiceway
import torch
from torch import nn
from zo_models import anything, anythings_loss, decoder, of_dtype, on_host, same, zo_ids, zo_loss


def disk(model: nn.Module, folder: Path, **options: object) -> sluiceway.ZoSgd:
    """Make a ZoSgd with low-rank noise, with its log beside the store."""
    store = sluiceway.StoreOptions(path=folder / "store", chunk=8192)
    return sluiceway.ZoSgd(
        model, tier="disk", noise="lowrank", **{"store": store, "path": folder, **options}
    )


@pytest.mark.parametrize(("depth", "lanes", "resident"), [(2, 1, 0), (8, 4, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_those_of_tier_host(depth, lanes, resident, dtype, tmp_path) -> None:
    options = {
        "lr": 0.05, "weight_decay": 0.3, "directions": 2, "rank": 3, "period": 4, "seed": 2**40 + 1,
        "depth": depth, "perturb_lanes": lanes, "resident": resident,
    }  # fmt: skip
    models = [of_dtype(decoder(), dtype) for _ in range(2)]
    opts = [disk(models[0], tmp_path, **options), on_host(models[1], noise="lowrank", **options)]
    for step in range(11):
        losses = []
        for opt, model in zip(opts, models, strict=True):
            closures = [lambda i=step + k, m=model: zo_loss(m, zo_ids(i)) for k in range(2)]
            losses.append((opt.step(closures), opt.evaluate(closures)))
        assert losses[0] == losses[1], step
    assert same(models[0].state_dict(), models[1])
    for opt in opts:
        opt.close()
    assert same(models[0].state_dict(), models[1])


def test_what_reads_a_weight_beside_the_ring_finds_the_same(tmp_path) -> None:
    models = [anything(), anything()]
    opts = [disk(models[0], tmp_path, lr=0.05), on_host(models[1], lr=0.05, noise="lowrank")]
    for step in range(3):
        losses = [
            opt.step(lambda m=model: anythings_loss(m, step))  # noqa: B023
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        assert same(models[0].state_dict(), models[1])


def test_a_store_and_a_log_that_are_there_go_on_whatever_the_weights(tmp_path) -> None:
    models = [decoder(), decoder()]
    options = {"lr": 0.05, "rank": 2, "period": 3}
    expected = on_host(models[1], noise="lowrank", **options)

    def step(opt: sluiceway.ZoSgd, model: nn.Module, number: int) -> torch.Tensor:
        return opt.step(lambda: zo_loss(model, zo_ids(number)))

    with disk(models[0], tmp_path, **options) as opt:
        losses = [step(opt, models[0], k) for k in range(5)]
        state = opt.state_dict()
        opt.close(theta=False)
    again = decoder(seed=7)
    with disk(again, tmp_path, **options) as opt:
        assert opt.committed_steps == 5
        losses += [step(opt, again, k) for k in range(5, 8)]
        opt.load_state_dict(state)  # Back on the line of the state: the same steps again.
        losses[5:] = [step(opt, again, k) for k in range(5, 8)]
        opt.rollback(2)
        assert step(opt, again, 2) == losses[2]
    assert losses == [step(expected, models[1], k) for k in range(8)]


def test_no_number_of_steps_needs_a_new_base(tmp_path) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    with disk(model, tmp_path, lr=1e-3, directions=350, period=2) as opt:
        for _ in range(4):
            opt.step(lambda: model(x).sum())
            assert opt.stats()["bytes"]["consolidated"] == 0
        with pytest.raises(
            sluiceway.InvalidArgument,
            match=r"consolidate: noise is lowrank, .* and not replayed",
        ):
            opt.consolidate()
        assert opt.committed_steps == 4


def test_a_new_base_of_what_is_summed_up_is_refused_with_its_option(tmp_path) -> None:
    with pytest.raises(
        sluiceway.InvalidArgument,
        match=r"consolidate is 5, but noise lowrank makes .* summed up beside the base",
    ):
        disk(decoder(), tmp_path, consolidate=5)
    assert not list(tmp_path.iterdir())
