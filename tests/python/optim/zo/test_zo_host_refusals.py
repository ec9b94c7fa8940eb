"""ZoSgd with weights in host memory: what cannot be, and what a failure leaves."""

from __future__ import annotations

import copy

import pytest
import sluiceway
import torch
from torch import nn
from zo_models import decoder, on_host, own_memory, zo_ids, zo_loss


def test_what_is_not_read_is_named_and_what_ran_once_has_to_run_again() -> None:
    def closure(model: nn.Module) -> torch.Tensor:
        x = model.embed(zo_ids(0))
        for number, layer in enumerate(model.layers):
            x = x if number in left_out else layer(x)
        return model.norm(x).square().mean()

    left_out = {1}
    model = decoder()
    opt = on_host(model)
    with pytest.raises(
        sluiceway.InvalidArgument, match=r"layers.1.norm.weight is trained but was not read"
    ):
        opt.step(lambda: closure(model))
    assert opt.committed_steps == 0
    left_out.clear()
    opt.step(lambda: closure(model))
    left_out.add(2)
    with pytest.raises(
        sluiceway.InvalidArgument, match=r"module layers.2.norm is trained but did not run in"
    ):
        opt.step(lambda: closure(model))
    left_out.clear()
    opt.step(lambda: closure(model))
    assert opt.committed_steps == 2


def test_no_base_is_taken_for_theta() -> None:
    model = decoder()
    opt = on_host(model)
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    extra = []

    def closure() -> torch.Tensor:
        extra.append(model.layers[0].up.weight.sum())  # Its layer is not running.
        return zo_loss(model, zo_ids(0)) + extra[-1]

    with pytest.warns(UserWarning, match="no finite g"):
        opt.step(closure)
    assert all(x.isnan() for x in extra)
    assert opt.stats()["zo"]["g"] == [0.0]


def test_a_failure_outside_of_a_step_leaves_the_base() -> None:
    model = decoder()
    opt = on_host(model, lr=0.1)
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    base = own_memory(model)
    for kind in (RuntimeError, KeyboardInterrupt):

        def fail(*_: object, kind: type = kind) -> None:
            raise kind

        handle = model.layers[1].up.register_forward_hook(fail)
        with pytest.raises(kind):
            model(zo_ids(0))
        handle.remove()
        once = model(zo_ids(0))
        assert torch.equal(once, model(zo_ids(0)))
        assert not once.requires_grad
        assert torch.is_grad_enabled()
        assert all(map(torch.equal, own_memory(model), base))
        assert all(p.requires_grad for p in model.parameters())
    opt.step(lambda: zo_loss(model, zo_ids(0)))


def test_a_closed_optimizer_says_so() -> None:
    model = decoder()
    opt = on_host(model, lr=0.1)
    opt.step(lambda: zo_loss(model, zo_ids(0)))
    theta = copy.deepcopy(model.state_dict())
    opt.close()
    opt.close()
    assert all(torch.equal(p, theta[name]) for name, p in model.named_parameters())
    with pytest.raises(sluiceway.InvalidArgument, match="the optimizer is closed"):
        opt.step(lambda: zo_loss(model, zo_ids(0)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(sluiceway.Unavailable, match="device is 'cuda:7', but this build"):
        on_host(decoder(), device="cuda:7")
    model = decoder()
    opt = on_host(model, budget=sluiceway.Budget(device=1000))
    with pytest.raises(sluiceway.OutOfMemory, match="ring"):
        opt.step(lambda: zo_loss(model, zo_ids(0)))
