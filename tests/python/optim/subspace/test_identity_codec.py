"""The identity codec with an exact wire is AdamW: element by element, and over a whole run."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import distance, loss_of, make, same_bits, two_groups, weights_of

ORDERS = ("barrier", "fcfs", "paper", "edf")
LR, MICRO_BATCHES, MAX_NORM = 2e-3, 3, 0.5


def subspace(model, **arguments):
    return sw.SubspaceAdamW(
        model,
        lr=LR,
        codec="identity",
        wire="fp32",
        param_groups=two_groups(model, LR),
        **arguments,
    )


def native(model):
    return torch.optim.AdamW(two_groups(model, LR), lr=LR, foreach=False, fused=False)


def backwards(model, step):
    norms = []
    for micro in range(MICRO_BATCHES):
        (loss_of(model, step * MICRO_BATCHES + micro) / MICRO_BATCHES).backward()
    norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
    return norms[-1]


def take_over(ours, opt, theirs, reference):
    """Give `opt` and its model the weights and moments of the reference."""
    ours.load_state_dict(theirs.state_dict())
    state = opt.state_dict()
    numbers = {id(p): i for i, p in enumerate(p for g in opt.param_groups for p in g["params"])}
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        moments = reference.state[other]
        entry = state["state"][numbers[id(mine)]]
        entry["step"] = int(moments["step"])
        entry["exp_avg"] = moments["exp_avg"].clone()
        entry["exp_avg_sq"] = moments["exp_avg_sq"].clone()
    opt.load_state_dict(state)


@pytest.mark.parametrize("order", ORDERS)
def test_one_step_from_equal_state_agrees_in_every_element(order):
    ours, theirs = make(), make()
    with subspace(ours, schedule=order) as opt:
        reference = native(theirs)
        for step in range(6):
            if step > 0:
                take_over(ours, opt, theirs, reference)
            norm, expected = backwards(ours, step), backwards(theirs, step)
            assert norm == pytest.approx(expected, rel=1e-6)
            assert expected > MAX_NORM  # Clipping is active.
            opt.step()
            reference.step()
            opt.zero_grad()
            reference.zero_grad()
            opt.synchronize()
            for (name, w), p in zip(weights_of(ours).items(), theirs.parameters(), strict=True):
                bound = 1e-6 * torch.clamp(p.detach().abs(), min=LR)
                excess = ((w - p.detach()).abs() / bound).max()
                assert excess <= 1, f"{name}: {float(excess):.3g} times the bound in step {step}"


def run(order=None, steps=100, **arguments):
    model = make()
    opt = native(model) if order is None else subspace(model, schedule=order, **arguments)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
    for step in range(steps):
        backwards(model, step)
        opt.step()
        schedule.step()
        opt.zero_grad()
    if order is not None:
        opt.close()
    return model


def test_hundred_free_steps_stay_with_native_and_all_orders_give_equal_bits():
    expected = run()
    models = {order: run(order) for order in ORDERS}
    for order, model in models.items():
        assert distance(model, expected) <= 1e-4, order
        assert same_bits(model, models["edf"]), order


@pytest.mark.parametrize("norm_mode", ["exact", "speculative"])
def test_norm_modes_give_equal_bits_under_throttled_links(norm_mode):
    link = sw.Link(d2h_gbps=0.5, h2d_gbps=0.5, latency_us=20)
    throttled = run("edf", steps=12, norm_mode=norm_mode, link=link, accumulate=MICRO_BATCHES)
    assert same_bits(throttled, run("edf", steps=12))
