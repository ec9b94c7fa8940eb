"""Only the step waits for an asynchronous device, once, and the bits are the same."""

from __future__ import annotations

import gc
import math
import weakref

import late_device
import pytest
import sluiceway as sw
import torch
from small_models import loss_of, make, same_bits, weights_of
from torch.nn.utils import clip_grad_norm_
from twins import identity
from updates import SLOW

STEPS = 5
BOUND = 0.005  # Below the norm of every gradient, so that all is clipped.


def train(act, micro_batches=1, **arguments):
    """Train a model; `act` comes between backward and step. Returns it and the norms."""
    model, norms = make(), []
    with sw.SubspaceAdamW(model, codec="block_random", ratio=0.5, **arguments) as opt:
        for step in range(STEPS):
            for micro in range(micro_batches):
                loss_of(model, step * micro_batches + micro).backward()
            act(model, opt)
            opt.step()
            norms.append(opt.stats()["grad_norm"])
            opt.zero_grad()
    return model, norms


def leave(model, opt):
    pass


def clip(model, opt):
    clip_grad_norm_(model.parameters(), BOUND)


def clip_ours(model, opt):
    opt.clip_grad_norm_(BOUND, parameters=list(model.blocks[1].parameters()))


def scale_all(model, opt):
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= 0.5


def replace_all(model, opt):
    for p in model.parameters():
        if p.grad is not None:
            p.grad = p.grad * 0.5


def log_norm(model, opt):
    assert sum(p.grad.norm() for p in model.parameters() if p.grad is not None) > 0


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("act", [leave, clip, clip_ours, scale_all, replace_all, log_norm])
def test_training_gives_the_bits_of_the_host_device(monkeypatch, act, micro_batches):
    expected, norms = train(act, micro_batches)
    late_device.use(monkeypatch)
    found, late_norms = train(act, micro_batches)
    assert same_bits(expected, found)
    assert norms == late_norms


def test_a_gradient_that_is_not_finite_skips_the_step(monkeypatch):
    late_device.use(monkeypatch)
    model = make()
    with identity(model, link=SLOW) as opt:
        before = weights_of(model)
        (loss_of(model, 0) * math.inf).backward()
        opt.step()
        assert opt.overflowed
        opt.zero_grad()
        opt.synchronize()
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        loss_of(model, 1).backward()
        clip(model, opt)
        opt.step()
        assert not opt.overflowed


@pytest.fixture
def late(monkeypatch):
    """A model, its optimizer, and what was read of tensors and asked of the engine."""
    late_device.use(monkeypatch)
    model, told = make(), []
    with identity(model, link=SLOW) as opt:
        asked = opt.engine.gradient_sizes
        for step in range(2):  # Afterwards nothing is looked for the first time.
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()

        class Engine:
            def __getattr__(self, name):
                return getattr(engine, name)

            def __len__(self):
                return len(engine)

            def gradient_sizes(self):
                told.append("gradient_sizes")
                return asked()

        engine, opt.engine = opt.engine, Engine()
        late_device.record_reads(monkeypatch, told)
        yield model, opt, told


def test_one_step_reads_once_and_no_backward_does(late):
    model, opt, told = late
    for micro in range(2):
        loss_of(model, micro).backward()
    assert told == []
    opt.step()
    # Behind cpu() it is the host's: one copy, of the norms of ordinary gradients. What the engine
    # has to tell was enqueued before it.
    assert told == ["cpu", "__bool__", "item", "gradient_sizes"]
    told.clear()
    opt.zero_grad()
    loss_of(model, 3)
    assert told == []


def test_the_norm_is_asked_for_when_somebody_looks(late):
    model, opt, told = late
    loss_of(model, 0).backward()
    clip(model, opt)
    assert told.count("gradient_sizes") == 1
    told.clear()
    opt.step()
    assert told.count("gradient_sizes") == 0
    # What everything was scaled by, and the norms of ordinary gradients.
    assert [name for name in told if name in ("tolist", "cpu")] == ["tolist", "cpu"]


def test_what_stands_in_grad_after_the_step_has_the_norm_yet(late):
    model, opt, _ = late
    loss_of(model, 0).backward()
    squares, _ = opt.engine.gradient_sizes()[0]
    opt.step()
    found = opt.weights[0].parameter.grad.norm().item()
    assert math.sqrt(squares) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_second_step_with_the_same_gradients_is_refused(late, looked_at):
    model, opt, _ = late
    loss_of(model, 0).backward()
    opt.step()
    if looked_at:
        log_norm(model, opt)
    with pytest.raises(sw.Error, match="gradients of the last step"):
        opt.step()


def test_a_gradient_that_was_kept_from_an_earlier_backward_says_nothing(late):
    model, opt, _ = late
    loss_of(model, 0).backward()
    kept = opt.weights[0].parameter.grad
    loss_of(model, 1).backward()
    standing = opt.weights[0].parameter.grad
    kept.norm()
    assert standing.generation.write is not None
    opt.step()
    opt.zero_grad()
    assert kept.norm() == 0


def test_a_kept_gradient_holds_no_optimizer(monkeypatch):
    late_device.use(monkeypatch)
    model = make()
    opt = identity(model, link=SLOW)
    loss_of(model, 0).backward()
    kept, gone = opt.weights[0].parameter.grad, weakref.ref(opt)
    del opt
    gc.collect()
    assert gone() is None
    kept.norm()


def put_back(change):
    def act(model, opt):
        early = opt.weights[0].parameter.grad
        opt.zero_grad()
        loss_of(model, 0).backward()
        opt.weights[0].parameter.grad = change(early, opt.weights[0].parameter.grad)

    return act


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (put_back(lambda early, _: early), "put no earlier .grad back"),
        (put_back(lambda early, now: torch.ones_like(now)), "that no backward"),
    ],
)
def test_what_is_refused_on_the_host_device_is_here(monkeypatch, act, words):
    late_device.use(monkeypatch)
    model = make()
    with identity(model, link=SLOW) as opt:
        loss_of(model, 0).backward()
        act(model, opt)
        with pytest.raises(sw.Error, match=words):
            opt.step()
        opt.zero_grad()
        loss_of(model, 0).backward()
        opt.step()


def test_gradients_that_were_zeroed_in_place_are_gone(monkeypatch):
    late_device.use(monkeypatch)
    model = make()
    with identity(model, link=SLOW) as opt:
        loss_of(model, 0).backward()
        model.zero_grad(set_to_none=False)
        loss_of(model, 1).backward()
        expected = opt.engine.gradient_sizes()
    with identity(again := make(), link=SLOW) as opt:
        loss_of(again, 1).backward()
        assert opt.engine.gradient_sizes() == expected
