"""Float16 and bfloat16 with SubspaceAdamW: scalers, autocast, weights of 16 bits."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import distance, loss_of, make, same_bits, weights_of
from torch import nn
from twins import LR, close_to_native, identity, train


def test_grad_scaler_skips_an_overflow_backs_off_and_goes_on():
    ours, theirs = make(), make()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours) as opt:
        pairs = [(ours, opt), (theirs, reference)]
        scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in pairs]
        for step in range(8):
            scales = []
            for (model, optimizer), scaler in zip(pairs, scalers, strict=True):
                loss = loss_of(model, step) * (float("inf") if step == 3 else 1.0)
                before = weights_of(model)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
                if step == 3:
                    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
            assert scales[0] == scales[1] == (1024.0 if step < 3 else 512.0)
    assert distance(ours, theirs) <= 1e-5


def test_model_zero_grad_after_a_step_the_scaler_left_out_drops_the_overflow():
    model = make()
    with identity(model) as opt:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        (scaler.scale(loss_of(model, 0)) * float("nan")).backward()
        scaler.step(opt)
        scaler.update()
        model.zero_grad()
        before = weights_of(model)
        scaler.scale(loss_of(model, 1)).backward()
        scaler.step(opt)
        opt.synchronize()
        assert all(torch.isfinite(p).all() for p in model.parameters())
        assert not torch.equal(before["blocks.0.up.weight"], model.blocks[0].up.weight)


@pytest.mark.parametrize("codec", ["auto", "block_random", "none"])
def test_grad_scaler_that_grows_trains_as_one_that_does_not(codec):
    def trained(growth_interval):
        model = make()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=growth_interval)
        with sw.SubspaceAdamW(model, lr=LR, codec=codec) as opt:
            for step in range(6):
                scaler.scale(loss_of(model, step)).backward()
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        return model

    assert same_bits(trained(2), trained(1000))  # Powers of two: not even rounding differs.


def test_grad_scaler_beside_promised_backwards_is_refused():
    model = make()
    scaler = torch.amp.GradScaler("cpu")
    with sw.SubspaceAdamW(model, codec="block_random", accumulate=1) as opt:
        scaler.scale(loss_of(model, 0)).backward()
        with pytest.raises(sw.InvalidArgument, match=r"GradScaler.*use accumulate='auto'"):
            scaler.step(opt)


def test_own_loss_scale_is_removed_in_step_and_backs_off():
    ours, plain = make(), make()
    with identity(ours, loss_scale="dynamic") as opt, identity(plain) as other:
        for step in range(6):
            opt.scale_loss(loss_of(ours, step)).backward()
            opt.step()
            opt.zero_grad()
        train(plain, other, 6)
        opt.synchronize()
        other.synchronize()
        assert distance(ours, plain) <= 1e-6
        (opt.scale_loss(loss_of(ours, 9)) * float("inf")).backward()
        opt.step()
        assert opt.overflowed
        assert opt.stats()["loss_scale"] == 32768.0


def test_autocast_bf16_trains_like_native():
    def loss(model, step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(model, step)

    assert close_to_native(make, loss=loss, steps=6) <= 1e-4


@pytest.mark.parametrize("update", ["stochastic", "residual"])
def test_bf16_weights_do_not_lose_small_updates(update):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256, bias=False)).to(torch.bfloat16)
    before = model[0].weight.detach().float().clone()
    with sw.SubspaceAdamW(
        model, lr=1e-6, weight_decay=0.0, codec="identity", wire="fp32", weight_update=update
    ) as opt:
        for _ in range(200):  # A constant gradient: AdamW moves every weight by lr a step.
            model[0].weight.grad = None
            model(torch.ones(1, 256, dtype=torch.bfloat16)).float().sum().backward()
            opt.step()
            opt.zero_grad()
    moved = (model[0].weight.detach().float() - before).mean().item()
    exact = before - 200e-6
    if update == "residual":  # What is seen is the upper half: the exact weight, rounded.
        exact = exact.bfloat16().float()
    assert moved == pytest.approx((exact - before).mean().item(), rel=0.05)
