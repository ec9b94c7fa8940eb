"""Common code around a step, on a card: `experiments/gpu/run.sh smoke`; see `gpu_training.py`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import sluiceway as sw
import torch
from gpu_training import CLOSE, SAME, STEPS, WAYS, apart, plain_loss, trained
from small_llama import small_llama
from small_models import make, update_error, weights_of
from test_for_trainer import ours as trained_by_trainer
from twins import LR, identity, train

HOST = torch.device("cpu")


@contextlib.contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """A stream beside the present one, which waits for it afterwards; the host device has one."""
    if device.type != "cuda":
        yield
        return
    outer, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(outer)
    with torch.cuda.stream(side):
        yield
    outer.wait_stream(side)


@pytest.mark.parametrize("way", ["hooks", "fused", "turns"])
def test_gradients_that_are_made_on_a_side_stream(device, way):
    model = make().to(device)
    with sw.SubspaceAdamW(model, lr=LR, **WAYS[way]) as opt:
        for step in range(STEPS):
            with side_stream(device):
                plain_loss(model, step).backward()
            opt.step()
            opt.zero_grad()
    assert update_error(make(), model.cpu(), trained(device, **WAYS[way])) <= SAME


def test_grad_scaler_skips_an_overflow_and_goes_on(device):
    models = {}
    for where in (HOST, device):
        model = models[where] = make().to(where)
        scaler = torch.amp.GradScaler(where.type, init_scale=1024.0)
        with identity(model) as opt:
            for step in range(8):
                loss = plain_loss(model, step) * (math.inf if step == 3 else 1.0)
                before = weights_of(model)
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
                if step == 3:
                    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
                assert scaler.get_scale() == (1024.0 if step < 3 else 512.0)
    assert update_error(make(), models[device].cpu(), models[HOST]) <= CLOSE


@pytest.mark.parametrize("way", ["hooks", "fused", "identity"])
@pytest.mark.parametrize("by", ["torch", "ours"])
def test_clipping(device, way, by):
    models, norms = {}, {}
    for where in (HOST, device):
        model = models[where] = make().to(where)
        norms[where] = []
        with sw.SubspaceAdamW(model, lr=LR, **WAYS[way]) as opt:
            for step in range(6):
                plain_loss(model, step).backward()
                if by == "ours":
                    norms[where].append(float(opt.clip_grad_norm_(0.05)))
                else:
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                    norms[where].append(float(norm))
                opt.step()
                opt.zero_grad()
    assert norms[device] == pytest.approx(norms[HOST], rel=1e-3)
    assert min(norms[HOST]) > 0.05
    assert update_error(make(), models[device].cpu(), models[HOST]) <= CLOSE


def test_weights_that_are_read_after_a_step_have_their_update(device):
    model = make().to(device)
    with sw.SubspaceAdamW(model, lr=LR, **WAYS["hooks"]) as opt:
        for step in range(4):
            plain_loss(model, step).backward()
            before = weights_of(model)
            opt.step()
            read = weights_of(model)
            opt.synchronize()
            opt.zero_grad()
            for name, weight in model.named_parameters():
                assert torch.equal(read[name], weight)
                assert not torch.equal(read[name], before[name])


def test_trainer_makes_its_optimizer_and_trains(device, tmp_path):
    found = {}
    for where in (HOST, device):
        changes = {"use_cpu": where.type == "cpu"}
        model, trainer, opt = trained_by_trainer(tmp_path / where.type, changes=changes)
        opt.close()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        found[where] = model.cpu(), losses
    assert found[device][1] == pytest.approx(found[HOST][1], rel=1e-2)
    assert len(found[device][1]) == 8
    assert update_error(small_llama(), found[device][0], found[HOST][0]) <= CLOSE


def test_a_closed_optimizer_gives_its_memory_back(device):
    model = make(width=2048).to(device)

    def free_bytes() -> int:
        with sw.SubspaceAdamW(model, lr=LR, **WAYS["hooks"]) as opt:
            train(model, opt, 2, loss=plain_loss)
        return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0

    free_bytes()  # Kernels are loaded, and torch's cache is filled.
    left = [free_bytes()]
    # The driver counts for all processes, and others may begin or end at any time. So this looks
    # for optimizers that took nothing away, of which a leak would leave none.
    while len(left) < 40 and sum(a == b for a, b in pairwise(left)) < 3:
        left.append(free_bytes())
    assert sum(a == b for a, b in pairwise(left)) >= 3, left


def test_full_adamw_whose_states_are_on_the_host(device):
    models = {}
    for where in (HOST, device):
        models[where] = make().to(where)
        with sw.OffloadAdamW(models[where], lr=LR, tier="host") as opt:
            train(models[where], opt, STEPS, loss=plain_loss)
    assert update_error(make(), models[device].cpu(), models[HOST]) <= CLOSE


def test_a_bound_can_fail(device):
    other = {**WAYS["hooks"], "seed": 7}
    there = trained(device, steps=4, **other)
    here = trained(HOST, steps=4, **WAYS["hooks"])
    assert update_error(make(), there, here) > 10 * CLOSE
    assert apart(device, **other) <= CLOSE
