"""ZoSgd with weights in host memory: the same bits as the equations, whatever the model is."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import sluiceway
import torch
from small_llama import small_llama, tokens
from torch import nn
from zo_follow import follow, shared_oracle
from zo_models import (
    anything,
    anythings_loss,
    decoder,
    of_dtype,
    on_host,
    own_memory,
    same,
    zo_ids,
    zo_loss,
)
from zo_oracle import Oracle, low_rank_oracle_of, oracle_of


@pytest.mark.parametrize(("directions", "seed"), [(1, 0), (3, 2**40 + 1)])
@pytest.mark.parametrize(("depth", "lanes"), [(2, 1), (8, 4)])
def test_losses_and_weights_are_the_oracles(directions, seed, depth, lanes) -> None:
    model = decoder()
    opt = on_host(
        model, lr=0.02, weight_decay=0.5, directions=directions, seed=seed, depth=depth,
        perturb_lanes=lanes,
    )  # fmt: skip
    oracle = shared_oracle(Oracle, seed, directions, 0.5)
    base = own_memory(model)

    def forwards(step: int) -> None:
        ids = zo_ids(step)
        with torch.no_grad():
            assert torch.equal(model(ids), oracle.model(ids))
            expected = zo_loss(oracle.model, ids)
            assert opt.evaluate([lambda: zo_loss(model, ids)] * 2) == expected

    follow(opt, model, oracle, every=10, looked=forwards)
    assert all(map(torch.equal, own_memory(model), base))  # Nothing was written to.
    assert opt.committed_steps == 200
    opt.close()
    assert same(model.state_dict(), oracle.model)


def test_weights_of_16_bits_are_the_oracles_and_stay_the_base() -> None:
    model = of_dtype(decoder(), torch.bfloat16)
    opt = on_host(model, lr=0.02, weight_decay=0.5)
    base = own_memory(model)
    oracle = shared_oracle(weight_decay=0.5, dtype=torch.bfloat16)
    follow(opt, model, oracle, every=10)
    assert all(map(torch.equal, own_memory(model), base))
    opt.close()
    assert same(model.state_dict(), oracle.model)


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiers_give_the_same_bits(depth: int, lanes: int, dtype: torch.dtype) -> None:
    options = {"lr": 0.02, "weight_decay": 0.3, "directions": 2, "noise": "gaussian", "eps": 1e-2}
    models = [of_dtype(decoder(), dtype) for _ in range(2)]
    opts = [
        on_host(models[0], depth=depth, perturb_lanes=lanes, resident=300, **options),
        sluiceway.ZoSgd(models[1], **options),
    ]
    for step in range(30):
        batches = [zo_ids(2 * step), zo_ids(2 * step + 1)]
        losses = [
            opt.step([lambda i=ids, m=model: zo_loss(m, i) for ids in batches])
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        assert same(models[0].state_dict(), models[1])


# ---- Models ----


@pytest.mark.parametrize(
    ("directions", "noise"),
    [(1, {}), (2, {}), (2, {"noise": "lowrank", "rank": 2, "period": 3})],
)
def test_any_model_is_measured_with_its_own_forward_pass(directions: int, noise: dict) -> None:
    ours, theirs = anything(), anything()
    opt = on_host(ours, lr=0.05, directions=directions, weight_decay=0.1, **noise)
    of = {"directions": directions, "weight_decay": 0.1}
    oracle = low_rank_oracle_of(theirs, 2, 3, **of) if noise else oracle_of(theirs, **of)
    for step in range(4):

        def loss(model: nn.Module, step: int = step) -> torch.Tensor:
            # torch folds a matmul otherwise where a weight requires gradients.
            return anythings_loss(model.requires_grad_(False), step)

        expected = oracle.step(loss, [0.05, 0.05])
        assert opt.step(lambda: anythings_loss(ours, step)).item() == expected  # noqa: B023
        assert same(ours.state_dict(), theirs)
        ids = torch.randint(0, 7, (2, 4))
        with torch.no_grad():
            assert torch.equal(ours(ids), theirs(ids))
            assert torch.equal(ours.gate(torch.ones(2, 5)), theirs.gate(torch.ones(2, 5)))
        assert same(ours.gate.state_dict(), theirs.gate)
    assert same(copy.deepcopy(ours).state_dict(), theirs)


def test_a_decoder_of_transformers_streams_in_the_order_of_its_forward() -> None:
    models = [small_llama(num_hidden_layers=3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    opts = [on_host(models[0], lr=1e-3), sluiceway.ZoSgd(models[1], lr=1e-3)]
    matrices = [p for p in models[0].parameters() if p.dim() >= 2]
    whole = sum(p.nbytes for p in matrices) + models[0].lm_head.weight.nbytes
    crossed = 0
    for step in range(4):
        ids = tokens(step)
        losses = [
            opt.step(lambda m=model: m(input_ids=ids, labels=ids).loss)  # noqa: B023
            for opt, model in zip(opts, models, strict=True)
        ]
        assert losses[0] == losses[1]
        crossed += opts[0].stats()["bytes"]["h2d"]
    assert same(models[0].state_dict(), models[1])
    assert crossed < 4.9 * whole  # Nothing was loaded twice; registered is another order.


def test_a_forward_that_runs_more_often_than_the_first_one_starts_again() -> None:
    models = [decoder(), decoder()]
    opts = [on_host(models[0], lr=0.1), sluiceway.ZoSgd(models[1], lr=0.1)]
    for times in (1, 3, 2):
        losses = []
        for opt, model in zip(opts, models, strict=True):

            def closure(model: nn.Module = model, times: int = times) -> torch.Tensor:
                return sum(zo_loss(model, zo_ids(k)) for k in range(times))

            losses.append((opt.step(closure), opt.evaluate(closure)))
        assert losses[0] == losses[1]
        assert same(models[0].state_dict(), models[1])


def test_autocast_keeps_no_cast_of_another_theta() -> None:
    models = [decoder(), decoder()]
    opts = [on_host(models[0], lr=0.5), sluiceway.ZoSgd(models[1], lr=0.5)]
    ids = zo_ids(0)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for _ in range(3):
            losses = [
                opt.step(lambda m=m: zo_loss(m, ids)) for opt, m in zip(opts, models, strict=True)
            ]
            assert losses[0] == losses[1]
            torch.clear_autocast_cache()
            assert torch.equal(models[0](ids), models[1](ids))


def test_a_model_is_copied_and_saved_with_hooks_that_do_nothing(tmp_path: Path) -> None:
    model = decoder()
    opt = on_host(model, lr=0.1, trace=tmp_path / "trace.json")
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert same(other.state_dict(), model)
        assert torch.equal(other(zo_ids(1)), model(zo_ids(1)))
    assert not torch.equal(model(zo_ids(1)), decoder()(zo_ids(1)))
    opt.close()
    assert "perturb" in (tmp_path / "trace.json").read_text()


def test_layers_arrive_once_for_all_forward_passes_and_before_they_are_asked_for() -> None:
    model = decoder()
    opt = on_host(model, directions=3)
    closures = [lambda k=k: zo_loss(model, zo_ids(k)) for k in range(2)]
    crossed = []
    for _ in range(4):
        opt.step(closures)
        crossed.append(opt.stats()["bytes"])
    opt.evaluate(closures)
    crossed.append(opt.stats()["bytes"])
    matrices = [p for p in model.parameters() if p.dim() >= 2] + [model.head.weight]
    # What is tied crosses at either end; a pass may have fetched what is the next one's.
    whole = sum(p.nbytes for p in matrices)
    assert sum(one["h2d"] for one in crossed) == pytest.approx(5 * whole, abs=whole)
    assert not any(one["d2h"] for one in crossed)
