"""What users do with ZoSgd tier host that would be wrong silently."""

from __future__ import annotations

import copy

import pytest
import sluiceway
import torch
from torch import nn
from zo_models import decoder, on_host, zo_ids, zo_loss


def trained(model: nn.Module, opt: sluiceway.ZoSgd, steps: int = 3, first: int = 0) -> None:
    for step in range(first, first + steps):
        opt.step(lambda i=step: zo_loss(model, zo_ids(i)))


def test_theta_is_not_taken_for_the_base_of_its_own_log() -> None:
    model = decoder()
    with on_host(model, lr=0.05) as opt:
        trained(model, opt)
        saved, theta = copy.deepcopy(opt.state_dict()), copy.deepcopy(model.state_dict())
    other = decoder()
    with on_host(other, lr=0.05) as opt:
        other.load_state_dict(theta)
        with pytest.raises(sluiceway.InvalidArgument, match=r"load_state_dict: .* was changed by"):
            opt.load_state_dict(saved)
    other = decoder()
    with on_host(other, lr=0.05) as opt:
        opt.load_state_dict(saved)
        found = other.state_dict()
        assert all(torch.equal(found[name], theta[name]) for name in theta)


def test_a_model_has_one_open_optimizer() -> None:
    model = decoder()
    opt = on_host(model, lr=0.05)
    trained(model, opt)
    for tier in ("host", "device"):
        with pytest.raises(sluiceway.InvalidArgument, match="belongs to another optimizer"):
            sluiceway.ZoSgd(model, tier=tier)
    opt.close()
    on_host(model, lr=0.05).close()
    opt = on_host(model, lr=0.05)
    trained(model, opt)
    del opt  # Whoever drops it is left with the base, and may go on.
    on_host(model, lr=0.05).close()


def test_logs_that_went_apart_are_not_taken_for_one_another(tmp_path) -> None:
    model = decoder()
    with on_host(model, lr=0.05) as opt:
        trained(model, opt, 2)
        early = copy.deepcopy(opt.state_dict())
        trained(model, opt, 3, first=2)
        late = copy.deepcopy(opt.state_dict())
    other = decoder()
    with on_host(other, lr=0.05, path=tmp_path / "other") as opt:
        opt.load_state_dict(early)
        trained(other, opt, 2, first=7)  # Other data: another history of the same log.
        theta = copy.deepcopy(other.state_dict())
        with pytest.raises(sluiceway.InvalidArgument, match="began as one and went on differently"):
            opt.load_state_dict(late)
        found = other.state_dict()
        assert all(torch.equal(found[name], theta[name]) for name in theta)
        opt.load_state_dict(early)
        assert opt.committed_steps == 2


def test_an_interrupted_forward_does_not_stop_the_next_step() -> None:
    model = decoder()
    with on_host(model, lr=0.05) as opt:
        trained(model, opt)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        handle = model.layers[1].up.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(zo_ids(0))
        handle.remove()
        trained(model, opt, 1)
        assert torch.is_grad_enabled()
        handle = model.layers[1].up.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(zo_ids(0))
        handle.remove()
        opt.evaluate(lambda: zo_loss(model, zo_ids(0)))


def test_a_trace_that_cannot_be_written_leaves_theta(tmp_path) -> None:
    model = decoder()
    opt = on_host(model, lr=0.05, trace=tmp_path / "missing" / "trace.json")
    trained(model, opt)
    theta = copy.deepcopy(model.state_dict())
    with pytest.raises(sluiceway.IoError, match=r"trace\.json"):
        opt.close()
    opt.close()
    assert all(torch.equal(p, theta[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resident": 5}, "resident is 5, which is of host and disk alone"),
        ({"rank": 3}, "rank is 3, which is of lowrank alone"),
        ({"trace": "t.json"}, "trace is 't.json' and tier 'device'"),
        ({"budget": sluiceway.Budget(device=1 << 30)}, r"budget is .* and tier 'device'"),
    ],
)
def test_options_that_play_no_part_are_refused(options: dict, words: str) -> None:
    with pytest.raises(sluiceway.InvalidArgument, match=words):
        sluiceway.ZoSgd(decoder(), **options)


def test_closures_of_an_evaluation_draw_the_same_numbers_on_both_tiers() -> None:
    found = []
    for tier in ("host", "device"):
        model = decoder()
        with sluiceway.ZoSgd(model, tier=tier) as opt:
            torch.manual_seed(3)
            seen: list[float] = []

            def closure(model: nn.Module = model, seen: list[float] = seen) -> torch.Tensor:
                draw = torch.rand(())
                seen.append(draw.item())
                return zo_loss(model, zo_ids(0)) + draw

            found.append(opt.evaluate([closure, closure]).item())
            assert seen[-1] == seen[-2]
    assert found[0] == found[1]
