"""Misuse of ZoSgd tier host that would otherwise be silently wrong."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import sluiceway
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from updates import COPIES
from zo_models import decoder, on_host, own_memory, same, zo_ids, zo_loss


def trained(model: nn.Module, opt: sluiceway.ZoSgd, steps: int = 3, first: int = 0) -> None:
    for step in range(first, first + steps):
        opt.step(lambda i=step: zo_loss(model, zo_ids(i)))


def test_theta_is_not_taken_for_the_base_of_its_own_log() -> None:
    model = decoder()
    with on_host(model, lr=0.05) as opt:
        trained(model, opt)
        saved, theta = copy.deepcopy(opt.state_dict()), copy.deepcopy(model.state_dict())
    other = decoder()
    other.load_state_dict(theta)
    say = r"load_state_dict: the state has the base"
    with on_host(other, lr=0.05) as opt, pytest.raises(sluiceway.InvalidArgument, match=say):
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
        with pytest.raises(sluiceway.InvalidArgument, match="begin alike but continue differently"):
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


STREAMED = {
    "host": {"tier": "host"},
    "write_back": {"tier": "host", "mode": "write_back"},
    "disk": {"tier": "disk"},
}


def streamed(model: nn.Module, tier: str, folder) -> sluiceway.ZoSgd:
    store = {"store": sluiceway.StoreOptions(path=folder)} if tier == "disk" else {}
    return sluiceway.ZoSgd(model, lr=0.05, **STREAMED[tier], **store)


@pytest.mark.parametrize("tier", STREAMED)
def test_whoever_uses_inference_mode_may_leave_it(tier: str, tmp_path) -> None:
    models = [decoder(), decoder()]
    opts = [streamed(m, tier, tmp_path / str(i)) for i, m in enumerate(models)]
    batch = zo_ids(9)
    with torch.inference_mode():
        evaluated = opts[0].evaluate(lambda: zo_loss(models[0], batch))
        models[0](batch)
        opts[0].step(lambda: zo_loss(models[0], zo_ids(0)))
        opts[0].state_dict()
    assert evaluated == opts[1].evaluate(lambda: zo_loss(models[1], batch))
    trained(models[1], opts[1], 1)
    for model, opt in zip(models, opts, strict=True):
        trained(model, opt, 2, first=1)
        opt.close()
        assert all(p.requires_grad and not p.is_inference() for p in model.parameters())
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("tier", [*STREAMED, "device"])
def test_a_weight_that_is_frozen_midway_is_not_trained_silently(tier: str, tmp_path) -> None:
    model = decoder()
    device = tier == "device"
    opt = sluiceway.ZoSgd(model, lr=0.05) if device else streamed(model, tier, tmp_path)
    trained(model, opt, 1)
    model.layers[1].up.weight.requires_grad_(False)
    with pytest.raises(sluiceway.InvalidArgument, match=r"layers.1.up.weight was frozen"):
        trained(model, opt, 1)
    assert not model.layers[1].up.weight.requires_grad
    opt.evaluate(lambda: zo_loss(model, zo_ids(1)))
    assert not model.layers[1].up.weight.requires_grad
    model.layers[1].up.weight.requires_grad_(True)
    trained(model, opt, 1)
    opt.close()


@pytest.mark.parametrize(
    ("what", "tier"),
    [*(("close", tier) for tier in STREAMED), ("rollback", "host"), ("rollback", "disk"),
     ("consolidate", "disk")],
)  # fmt: skip
def test_what_ends_a_pass_is_refused_inside_of_a_closure(what: str, tier: str, tmp_path) -> None:
    calls = {
        "close": lambda: opt.close(),
        "rollback": lambda: opt.rollback(0),
        "consolidate": lambda: opt.consolidate(),
    }
    model, again = decoder(), decoder()
    opt = streamed(model, tier, tmp_path / "a")
    trained(model, opt, 1)

    def closure() -> torch.Tensor:
        loss = zo_loss(model, zo_ids(1))
        calls[what]()
        return loss

    with pytest.raises(sluiceway.InvalidArgument, match=f"{what}: a step is under way"):
        opt.step(closure)
    trained(model, opt, 2, first=1)
    opt.close()
    with streamed(again, tier, tmp_path / "b") as opt:
        trained(again, opt, 3)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_of_mode_write_back_are_of_the_last_step() -> None:
    model = decoder()
    with sluiceway.ZoSgd(model, lr=0.05, tier="host", mode="write_back") as opt:
        trained(model, opt)
        stale = own_memory(model)
        own = [p.clone() for p in model.parameters()]
        assert any(not torch.equal(a, b) for a, b in zip(stale, own, strict=True))
        for p, q in zip(own, model.parameters(), strict=True):
            assert torch.equal(p, opt.theta(q))


# ---- Who reads parameters whose weights are elsewhere ----

ELSEWHERE = {
    "host": {"tier": "host"},
    "disk": {"tier": "disk"},
    "low rank": {"tier": "host", "noise": "lowrank"},
    "image": {"tier": "host", "mode": "write_back", "dtype": torch.bfloat16},
}
READS = {
    "clone": lambda p: p.detach().clone(),
    "data": lambda p: p.data,
    "sum": lambda p: p.sum(),
    "index": lambda p: p[0],
    "double": lambda p: p.double(),
    "type": lambda p: p.type(torch.float64),
    "list": lambda p: p.tolist(),
    "array": lambda p: p.detach().numpy(),
    "storage": lambda p: p.untyped_storage(),
    "stack": lambda p: torch.stack([p, p]),
    "foreach": lambda p: torch._foreach_mul([p], 2.0),
    "average": lambda p: torch.zeros(p.shape).lerp_(p, 0.5),
    "parameter": nn.Parameter,
    "vmap": lambda p: torch.vmap(lambda row: row.sum())(p),
    "grad": lambda p: torch.func.grad(lambda x: x.sum())(p),
    "add": lambda p: p.add_(1.0),
    "copy": lambda p: p.copy_(torch.zeros(p.shape)),
    "assign": lambda p: p.__setitem__(0, 0.0),
}


def elsewhere(folder: Path, dtype: torch.dtype = torch.float32, **options: object):
    """A model with some steps, and its optimizer."""
    model = decoder().to(dtype)
    if options["tier"] == "disk":
        options["store"] = sluiceway.StoreOptions(path=folder)
    opt = sluiceway.ZoSgd(model, lr=0.05, seed=1, **options)
    trained(model, opt)
    return model, opt


@pytest.mark.parametrize("options", ELSEWHERE.values(), ids=ELSEWHERE)
def test_whoever_reads_a_parameter_between_steps_is_told(tmp_path, options) -> None:
    model, opt = elsewhere(tmp_path / "a", **options)
    alone, other = elsewhere(tmp_path / "b", **options)
    for name, p in model.named_parameters():
        for read in READS.values():
            with torch.no_grad(), pytest.raises(sluiceway.InvalidArgument, match=name):
                read(p)
        assert p.shape == opt.theta(p).shape
        assert p.to("cpu") is p
        assert p.type() == torch.empty(0, dtype=p.dtype).type()
        assert p.requires_grad
        assert p.grad is None
    model.to("cpu")
    trained(model, opt, first=3)
    trained(alone, other, first=3)
    opt.close()
    other.close()
    assert same(model.state_dict(), alone)
    assert all(type(p) is nn.Parameter and not vars(p) for p in model.parameters())
    assert [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("options", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("take", COPIES.values(), ids=COPIES)
def test_a_copy_of_the_model_has_the_trained_weights(tmp_path, options, take) -> None:
    model, opt = elsewhere(tmp_path, **options)
    with opt:
        theta = copy.deepcopy(model.state_dict())
        twin = take(model)
        assert same(theta, twin)
        assert all(type(p) is nn.Parameter and not vars(p) for p in twin.parameters())
        assert twin.head.weight is twin.embed.weight
        assert repr(model.embed.weight) == repr(twin.embed.weight)
        with torch.no_grad():
            assert torch.equal(twin(zo_ids(7)), model(zo_ids(7)))
        trained(model, opt, first=3)
    assert same(theta, twin)


def test_an_average_of_weights_is_of_the_last_step_or_is_refused(tmp_path) -> None:
    averaged = AveragedModel(decoder())
    model, opt = elsewhere(tmp_path, tier="host", mode="write_back")
    with opt:
        averaged.update_parameters(model)
        assert same(model.state_dict(), averaged.module)
    model, opt = elsewhere(tmp_path, tier="host")
    with opt, pytest.raises(sluiceway.InvalidArgument, match=r"read opt\.theta"):
        averaged.update_parameters(model)


def test_a_model_with_weights_elsewhere_takes_no_weights_of_others(tmp_path) -> None:
    model, opt = elsewhere(tmp_path, tier="host")
    with opt, pytest.raises(RuntimeError, match=r"embed\.weight is read or written"):
        model.load_state_dict(decoder(seed=5).state_dict())
