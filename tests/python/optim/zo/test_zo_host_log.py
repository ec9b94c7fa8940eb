"""The log of ZoSgd with weights in host memory: it goes on and back, branches, and has a base."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import sluiceway
import torch
from torch import nn
from zo_models import OPTIONS, decoder, on_host, same, zo_ids, zo_loss, zo_train


@pytest.fixture(params=[{}, {"noise": "lowrank", "period": 2}], ids=["elementwise", "low-rank"])
def options(request: pytest.FixtureRequest) -> dict:
    return OPTIONS | request.param


def test_a_log_goes_on_where_it_was_closed(options: dict, tmp_path: Path) -> None:
    whole = decoder()
    in_one_go = on_host(whole, **options)
    expected = zo_train(in_one_go, whole, range(8))
    found = []
    for steps in (range(3), range(3, 5), range(5, 8)):
        model = decoder()
        opt = on_host(model, path=tmp_path, **options)
        assert opt.committed_steps == steps.start
        assert opt.param_groups[0]["gamma"] == pytest.approx(0.99**steps.start)
        found += zo_train(opt, model, steps)
        opt.close()
    assert found == expected
    assert same(model.state_dict(), whole)
    in_one_go.close()
    assert [path.name for path in tmp_path.iterdir()] == ["scalars.log"]


def test_theta_of_a_log_is_there_before_any_step(options: dict, tmp_path: Path) -> None:
    first = decoder()
    opt = on_host(first, path=tmp_path, **options)
    zo_train(opt, first, range(3))
    opt.close()
    model = decoder()
    opt = on_host(model, path=tmp_path, **options)
    assert same(model.state_dict(), first)
    with torch.no_grad():
        assert torch.equal(model(zo_ids(0)), first(zo_ids(0)))
        assert opt.evaluate(lambda: zo_loss(model, zo_ids(0))) == zo_loss(first, zo_ids(0))


@pytest.mark.parametrize("given", [True, False])
def test_a_state_has_all_that_a_new_optimizer_needs(
    given: bool, options: dict, tmp_path: Path
) -> None:
    whole = decoder()
    expected = zo_train(on_host(whole, **options), whole, range(6))
    model = decoder()
    opt = on_host(model, path=tmp_path if given else None, **options)
    found = zo_train(opt, model, range(3))
    state = copy.deepcopy(opt.state_dict())
    zo_train(opt, model, range(10, 12))
    opt.load_state_dict(state)  # Back, on the same log.
    assert opt.committed_steps == 3
    assert found + zo_train(opt, model, range(3, 6)) == expected
    again = decoder()
    other = on_host(again, **{**options, "lr": 9.0})
    other.load_state_dict(state)
    assert found + zo_train(other, again, range(3, 6)) == expected
    assert same(again.state_dict(), model)


def test_rollback_and_branch(options: dict, tmp_path: Path) -> None:
    model = decoder()
    opt = on_host(model, path=tmp_path / "one", **options)
    losses = zo_train(opt, model, range(5))
    opt.branch(2, tmp_path / "two")
    opt.rollback(2)
    assert zo_train(opt, model, range(2, 5)) == losses[2:]
    twin = decoder()
    branch = on_host(twin, path=tmp_path / "two", **options)
    assert branch.committed_steps == 2
    assert zo_train(branch, twin, range(2, 5)) == losses[2:]
    assert same(twin.state_dict(), model)
    with pytest.raises(sluiceway.InvalidArgument, match="rollback: step is 9"):
        opt.rollback(9)
    device = sluiceway.ZoSgd(decoder())
    with pytest.raises(sluiceway.InvalidArgument, match="has no log"):
        device.rollback(0)
    with pytest.raises(
        sluiceway.InvalidArgument, match=r"path is .* for host and disk alone; leave it"
    ):
        sluiceway.ZoSgd(decoder(), path=tmp_path)


def test_another_base_is_refused(tmp_path: Path) -> None:
    model = decoder()
    with on_host(model, path=tmp_path, **OPTIONS) as opt:
        state = opt.state_dict()
        zo_train(opt, model, range(1))
    with pytest.raises(sluiceway.InvalidArgument, match="give the weights or the log that belong"):
        on_host(decoder(seed=1), path=tmp_path, **OPTIONS)
    with pytest.raises(sluiceway.InvalidArgument, match=r"expected .*run seed 6"):
        on_host(decoder(), path=tmp_path, **{**OPTIONS, "seed": 6})
    other = on_host(decoder(seed=1), **OPTIONS)
    with pytest.raises(
        sluiceway.InvalidArgument, match="load the weights that the state's run began"
    ):
        other.load_state_dict(state)
    with pytest.raises(sluiceway.InvalidArgument, match="tier was 'host'"):
        sluiceway.ZoSgd(decoder(), **OPTIONS).load_state_dict(state)
    mine = on_host(decoder(), **OPTIONS)
    mine.load_state_dict(state)


def test_more_updates_than_a_weight_can_be_given_at_once_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    opt = on_host(model, lr=1e-3, directions=500)
    x = torch.ones(1, 2)
    closure: Callable = lambda: model(x).sum()  # noqa: E731
    opt.step(closure)
    opt.step(closure)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(sluiceway.InvalidArgument, match=r"1000 updates .* consolidate"):
        opt.step(closure)
    assert opt.committed_steps == 2
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
