"""SubspaceAdamW trains on a card as on the host device: `experiments/gpu/run.sh smoke`.

`--device host` runs the same bodies without a card, which shows that they run, and no more. Both
sides compute in fp32 without TF32, torch's default; AdamW makes more of a difference in rounding
where a gradient is next to nothing, which is what the bounds leave room for.
"""

from __future__ import annotations

import copy
import io

import pytest
import sluiceway as sw
import torch
from small_models import Checkpointed, Stack, batch, make, same_bits, update_error
from torch import nn
from torch.nn import functional
from twins import LR, train

STEPS = 20
CLOSE = 1e-2  # Of an update; another seed's is about 1.4 away.
SAME = 1e-4  # Of the same work on the same device.

# Directions of svd that a gradient hardly has are what rounding makes of them, so no two devices
# have the same. Of 8 directions a change of the weights by one rounding moves the update by 0.12 on
# the host device alone, of 4 by 0.003.
WAYS = {
    "hooks": {"codec": "block_random"},
    "svd": {"codec": "svd", "ratio": 1 / 64},
    "identity": {"codec": "identity", "wire": "fp32"},
    "fused": {"codec": "block_random", "fused": True, "residual": "none"},
    "turns": {"codec": "block_random", "fused": True, "residual": "factored", "residual_every": 2},
    "speculative": {"codec": "block_random", "norm_mode": "speculative", "max_norm": 0.5},
    "on_device": {"codec": "block_random", "tier": "device"},
}


def batch_on(model: nn.Module, step: int) -> tuple[torch.Tensor, ...]:
    parameter = next(model.parameters())
    return tuple(x.to(parameter.device) for x in batch(step))


def plain_loss(model: nn.Module, step: int) -> torch.Tensor:
    x, y = batch_on(model, step)
    return functional.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)


def autocast_loss(model: nn.Module, step: int) -> torch.Tensor:
    with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):
        x, y = batch_on(model, step)
        return functional.mse_loss(model(x).float(), y)


def trained(device, kind=Stack, loss=plain_loss, dtype=torch.float32, steps=STEPS, **arguments):
    model = make(kind).to(device, dtype)
    with sw.SubspaceAdamW(model, lr=LR, **arguments) as opt:
        train(model, opt, steps, loss=loss)
    return model.cpu()


def apart(device, kind=Stack, loss=plain_loss, dtype=torch.float32, **arguments):
    """Relative difference between the updates of all steps on `device` and on the host device."""
    host = torch.device("cpu")
    there = trained(device, kind, loss, dtype, **arguments)
    here = trained(host, kind, loss, dtype, **arguments)
    start = make(kind).to(dtype)
    assert not same_bits(there, start)
    return update_error(start, there, here)


@pytest.mark.parametrize("way", WAYS)
def test_twenty_steps_are_those_of_the_host_device(device, way):
    assert apart(device, **WAYS[way]) <= CLOSE


@pytest.mark.parametrize("way", ["hooks", "fused"])
def test_bf16_autocast(device, way):
    assert apart(device, loss=autocast_loss, **WAYS[way]) <= 0.1


@pytest.mark.parametrize("update", ["stochastic", "residual"])
def test_weights_of_bf16(device, update):
    # A weight is a step of bf16 off where rounding went the other way once.
    found = apart(device, dtype=torch.bfloat16, weight_update=update, **WAYS["hooks"])
    assert found <= 0.3


@pytest.mark.parametrize("way", ["hooks", "fused", "turns"])
def test_checkpointing(device, way):
    assert apart(device, Checkpointed, **WAYS[way]) <= CLOSE
    kept = trained(device, **WAYS[way])
    again = trained(device, Checkpointed, **WAYS[way])
    assert update_error(make(), again, kept) <= SAME


def test_accumulated_micro_batches(device):
    host = torch.device("cpu")
    models = {}
    for where in (host, device):
        models[where] = make().to(where)
        with sw.SubspaceAdamW(models[where], lr=LR, accumulate=3, **WAYS["hooks"]) as opt:
            train(models[where], opt, 8, loss=plain_loss, micro_batches=3)
    assert update_error(make(), models[device].cpu(), models[host]) <= CLOSE


def test_a_paced_link_changes_no_update(device):
    slow = sw.Link(d2h_gbps=0.5, h2d_gbps=0.5, latency_us=20)
    plain = trained(device, steps=6, **WAYS["hooks"])
    assert update_error(make(), trained(device, steps=6, link=slow, **WAYS["hooks"]), plain) <= SAME


@pytest.mark.parametrize("way", ["hooks", "fused", "identity"])
def test_a_save_in_the_middle_goes_on(device, way):
    whole = trained(device, **WAYS[way])
    first = make().to(device)
    with sw.SubspaceAdamW(first, lr=LR, **WAYS[way]) as opt:
        train(first, opt, 8, loss=plain_loss)
        stored = io.BytesIO()
        torch.save({"model": first.state_dict(), "opt": opt.state_dict()}, stored)
    stored.seek(0)
    saved = torch.load(stored, weights_only=True)
    middle = copy.deepcopy(first).cpu()
    second = make(seed=5).to(device)  # Nothing may depend on what it started from.
    with sw.SubspaceAdamW(second, lr=LR, **WAYS[way]) as opt:
        second.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        train(second, opt, STEPS - 8, first=8, loss=plain_loss)
    assert update_error(middle, second.cpu(), whole) <= SAME


def test_projectors_are_learned_alike_twice(device):
    learned = {"codec": "sparse_learned", "refresh": sw.Refresh(every=3, learn_steps=5)}
    first = trained(device, steps=8, **learned)
    assert update_error(make(), trained(device, steps=8, **learned), first) <= SAME
    fixed = trained(device, steps=8, codec="sparse_learned")
    assert update_error(make(), fixed, first) > SAME
