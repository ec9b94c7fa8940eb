"""Finite gradients whose squares float32 cannot hold, above 1.8e19: torch's AdamW steps on them."""

from __future__ import annotations

import math

import pytest
import sluiceway as sw
import torch
from sluiceway.optim.native import NativeAdamW
from small_models import Bare, Stack, loss_of, make, update_error
from torch.nn.utils import clip_grad_norm_
from twins import LR, identity
from updates import driven_error

STEPS = 8
EPS = 1e-6
LARGE = (2, 3)  # The steps whose gradients are.
SCALES = pytest.mark.parametrize("scale", [1e18, 1e20, 1e30, 1e37])
MODELS = pytest.mark.parametrize("kind", [Stack, Bare])


def nothing(model, opt):
    pass


def steps(scale, act=nothing):
    def drive(model, opt):
        for step in range(STEPS):
            (loss_of(model, step) * (scale if step in LARGE else 1.0)).backward()
            act(model, opt)
            opt.step()
            opt.zero_grad()
        assert getattr(opt, "skipped_steps", 0) == 0

    return drive


@MODELS
@SCALES
def test_a_large_gradient_is_no_overflow(kind, scale):
    assert driven_error(steps(scale), lambda: make(kind), eps=EPS) <= 1e-5


@MODELS
@SCALES
def test_torchs_clipping_whose_norm_overflows_zeroes_as_torchs_does(kind, scale):
    def clip(model, opt):
        norm = clip_grad_norm_(model.parameters(), 1.0)
        assert norm.isfinite() or scale > 1e18

    assert driven_error(steps(scale, clip), lambda: make(kind), eps=EPS) <= 1e-5


@MODELS
@SCALES
def test_our_clipping_takes_norms_that_torchs_cannot(kind, scale):
    def clip(model, opt):
        if not isinstance(opt, torch.optim.AdamW):
            opt.clip_grad_norm_(1.0)
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = math.hypot(*(g.double().norm().item() for g in gradients))
        for gradient in gradients:
            gradient.mul_(min(1.0, 1.0 / norm))

    assert driven_error(steps(scale, clip), lambda: make(kind), eps=EPS) <= 1e-5


@MODELS
def test_max_norm_clips_what_torchs_norm_cannot(kind):
    model = make(kind)
    with identity(model, max_norm=1.0) as opt:
        (loss_of(model, 0) * 1e20).backward()
        opt.step()
        assert not opt.overflowed
        assert 1e20 < opt.stats()["grad_norm"] < 1e22


@MODELS
@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_a_norm_that_float32_cannot_hold(kind, scale):
    """Each element is finite, all together are not; a scaler's factor is read all the same."""

    def drive(model, opt):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        for step in range(STEPS):
            loss = loss_of(model, step)
            if step in LARGE:
                loss = loss + sum((p * (3e37 / scale)).sum() for p in model.parameters())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        assert getattr(opt, "skipped_steps", 0) == 0
        assert scaler.get_scale() == scale

    assert driven_error(drive, lambda: make(kind), eps=EPS) <= 1e-5


@MODELS
def test_what_is_not_finite_is_skipped(kind):
    model = make(kind)
    with identity(model) as opt:
        for p in model.parameters():
            p.register_hook(lambda g: g + math.inf)
        loss_of(model, 0).backward()
        opt.step()
        assert opt.overflowed


@pytest.mark.parametrize("codec", ["block_random", "svd"])
def test_lossy_codecs_step_too(codec):
    model = make()
    with sw.SubspaceAdamW(model, lr=LR, codec=codec) as opt:
        steps(1e20)(model, opt)
        opt.synchronize()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("max_norm", [None, 1e30])
def test_the_native_engine_steps_as_torchs(max_norm):
    ours, theirs = make(), make()
    steps(1e20)(ours, NativeAdamW(ours.parameters(), max_norm, False, lr=LR))
    steps(1e20)(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False))
    assert update_error(make(), ours, theirs) == 0
