"""SubspaceAdamW as a torch.optim.Optimizer: schedulers, clipping, accumulation, refusals."""

from __future__ import annotations

import gc
import weakref

import pytest
import sluiceway as sw
import torch
from small_models import batch, distance, loss_of, make, same_bits, weights_of
from torch import nn
from twins import LR, close_to_native, identity, train


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda opt: torch.optim.lr_scheduler.LinearLR(opt, total_iters=8),
        lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=12),
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=LR, total_steps=14),
    ],
    ids=["LinearLR", "CosineAnnealingLR", "OneCycleLR"],
)
def test_schedulers_drive_the_learning_rate(scheduler):
    assert close_to_native(make, scheduler=scheduler) <= 1e-5


def test_max_norm_in_the_constructor_clips_like_clip_grad_norm():
    ours, theirs = make(), make()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, max_norm=0.3) as opt:
        for step in range(8):
            loss_of(ours, step).backward()
            opt.step()
            opt.zero_grad()
            loss_of(theirs, step).backward()
            norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
            reference.step()
            reference.zero_grad()
            assert norm > 0.3
            assert opt.stats()["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert distance(ours, theirs) <= 1e-5


def test_clip_by_value_is_refused_and_changes_nothing():
    model = make()
    with identity(model):
        before = weights_of(model)
        loss_of(model, 0).backward()
        with pytest.raises(sw.Unavailable, match="clip by norm, not by value"):
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        for name, p in model.named_parameters():
            assert torch.equal(p, before[name])


def test_gradient_accumulation_of_changing_length():
    ours, theirs = make(), make()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours) as opt:
        for step, micro_batches in enumerate((1, 3, 2, 4, 1)):
            for model, optimizer in ((ours, opt), (theirs, reference)):
                for micro in range(micro_batches):
                    loss_of(model, 10 * step + micro).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert distance(ours, theirs) <= 1e-5


def test_zero_grad_without_step_drops_what_was_accumulated():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        for drop in (opt.zero_grad, ours.zero_grad):
            loss_of(ours, 99).backward()
            drop()
            train(ours, opt, 2)
            train(plain, other, 2)
    assert same_bits(ours, plain)


def test_gradients_that_are_not_finite_change_nothing():
    model = make()
    with identity(model) as opt:
        train(model, opt, 2)
        opt.synchronize()
        before = weights_of(model)
        (loss_of(model, 5) * float("nan")).backward()
        opt.step()
        opt.synchronize()
        assert opt.overflowed
        assert opt.skipped_steps == 1
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
        opt.zero_grad()
        train(model, opt, 1, first=6)
        assert not opt.overflowed


def test_a_parameter_changed_behind_its_back_is_named():
    model = make()
    with identity(model) as opt:
        train(model, opt, 1)
        opt.synchronize()
        weight = model.blocks[1].up.weight
        weight.data = weight.data[:200].clone()
        model.blocks[1].up.bias.data = model.blocks[1].up.bias.data[:200].clone()
        x = torch.randn(3, 256)
        with pytest.raises(RuntimeError, match=r"got \[200, 256\]"):  # torch's own.
            model.blocks[1].up(x).sum().backward()
        weight.data = weight.data.double()
        with pytest.raises(
            sw.InvalidArgument, match=r"weight is torch.float64 .*expected torch.float32"
        ):
            opt.step()


def test_errors_name_what_is_and_what_was_expected():
    with pytest.raises(sw.InvalidArgument, match="no trainable linear weight"):
        sw.SubspaceAdamW(nn.Sequential(nn.LayerNorm(4)), codec="block_random")
    with pytest.raises(sw.InvalidArgument, match="residual is 'half'"):
        sw.SubspaceAdamW(make(), codec="block_random", residual="half")
    with pytest.raises(sw.InvalidArgument, match="trains nothing"):
        sw.SubspaceAdamW(make(), codec="none", residual="none")
    with pytest.raises(sw.InvalidArgument, match="nonsense"):
        sw.SubspaceAdamW(make(), codec="nonsense")
    with pytest.raises(sw.InvalidArgument, match=r"ratio is 1\.5"):
        sw.SubspaceAdamW(make(), codec="block_random", ratio=1.5)
    with pytest.raises(sw.InvalidArgument, match="norm_mode is 'lagged'"):
        sw.SubspaceAdamW(make(), codec="block_random", norm_mode="lagged")
    with pytest.raises(sw.OutOfMemory, match=r"(?s)bytes.*bytes"):
        sw.SubspaceAdamW(make(), codec="block_random", budget=sw.Budget(host="64KiB"))
    with pytest.raises(sw.Unavailable, match="cuda:0"):
        sw.SubspaceAdamW(make(), codec="block_random", device="cuda:0")


def test_refused_construction_leaves_the_model_as_it_was():
    model = make()
    with pytest.raises(sw.OutOfMemory):
        sw.SubspaceAdamW(model, codec="block_random", budget=sw.Budget(pinned=1))
    assert all(p.requires_grad for p in model.parameters())
    assert not model._forward_pre_hooks


def test_bytes_on_the_links_are_exactly_the_payloads():
    model = make()
    opt = sw.SubspaceAdamW(model, codec="block_random", ratio=0.25, wire="bf16")
    expected = 4 * 64 * 64 * 2  # Four 256 x 256 weights, cores of 64 x 64 in bf16.
    totals = {"d2h": 0, "h2d": 0}
    for step in range(5):
        loss_of(model, step).backward()
        opt.step()
        for way in totals:
            totals[way] += opt.stats()["bytes"][way]
        opt.zero_grad()
    opt.synchronize()
    rest = opt.engine.take_stats()
    assert totals["d2h"] + rest["d2h_bytes"] == 5 * expected
    assert totals["h2d"] + rest["h2d_bytes"] == 5 * expected
    opt.close()


def test_a_dropped_optimizer_is_freed_and_hangs_nothing():
    model = make()
    opt = identity(model, link=sw.Link(d2h_gbps=0.01, h2d_gbps=0.01))
    loss_of(model, 0).backward()
    opt.step()
    gone = weakref.ref(opt)
    del opt
    gc.collect()
    assert gone() is None
    assert not model._forward_pre_hooks
    loss_of(model, 1).backward()
    assert model.blocks[0].up.weight.grad is not None


def test_close_is_idempotent_and_a_closed_optimizer_says_so():
    model = make()
    opt = identity(model)
    train(model, opt, 1)
    opt.close()
    opt.close()
    with pytest.raises(sw.InvalidArgument, match="closed"):
        opt.step()


def test_evaluation_between_backward_and_step_does_not_wait_for_held_work():
    ours, plain = make(), make()
    with identity(ours) as opt, identity(plain) as other:
        for step in range(4):
            loss_of(ours, step).backward()
            with torch.inference_mode():
                ours(batch(step)[0])
            opt.step()
            opt.zero_grad()
        train(plain, other, 4)
    assert same_bits(ours, plain)


def test_identity_weights_are_measured_once_a_turn():
    model = make()
    with sw.SubspaceAdamW(model, codec="identity", refresh=sw.Refresh(every=3)) as opt:
        measured = []
        for step in range(7):
            train(model, opt, 1, first=step)
            measured.append(opt.stats()["subspace"]["bias_mean"])
    assert 0 < measured.count(0.0) < len(measured)
    assert measured.count(None) > 0
