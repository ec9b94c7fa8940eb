"""The default codec where a step is long, svd with a factored residual, under what users do.

Updates are checked by feeding: a twin gets gradients that plain autograd computed at the same
weights, one backward for each, and has to end in the same bits.
"""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import (
    Checkpointed,
    CheckpointedReentrant,
    Stack,
    Tied,
    batch,
    distance,
    loss_of,
    make,
    same_bits,
    weights_of,
)
from twins import LR, train


def default(model, **arguments):
    opt = sw.SubspaceAdamW(model, lr=LR, tokens_per_step=2**20, total_steps=500, **arguments)
    assert {(w["codec"], w["residual"]) for w in opt.describe()} == {("svd", "factored")}
    return opt


def autocast_loss(dtype):
    """`loss_of` under autocast; without it for None."""

    def loss(model, step):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return loss_of(model, step)

    return loss


def gradients(plain, weights, loss, step):
    """Compute gradients at these weights with plain autograd."""
    plain.load_state_dict(weights)
    plain.zero_grad()
    loss(plain, step).backward()
    return [p.grad for p in plain.parameters()]


def feed(model, opt, found):
    """A backward whose gradients are these, bit for bit."""
    opt.synchronize()  # No forward does it.
    sum((p * g).sum() for p, g in zip(model.parameters(), found, strict=True)).backward()


def scaled_by(scale, loss):
    return lambda model, step: scale * loss(model, step)


def each_twice(model, micro):
    return loss_of(model, micro // 2)


PRECISIONS = pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
KINDS = pytest.mark.parametrize(
    ("kind", "plain_kind"),
    [
        (Stack, Stack),
        (Checkpointed, Stack),
        (CheckpointedReentrant, Stack),
        (Tied, Tied),
        (lambda: Tied(reentrant=False), Tied),
    ],
    ids=["plain", "checkpointed", "reentrant", "tied", "tied-checkpointed"],
)


@KINDS
@PRECISIONS
@pytest.mark.parametrize("accumulate", ["auto", 2])
def test_updates_are_those_of_plain_gradients(kind, plain_kind, dtype, accumulate):
    ours, plain, fed = make(kind), make(plain_kind), make(plain_kind)
    loss = autocast_loss(dtype)
    with default(ours, accumulate=accumulate) as opt, default(fed) as other:
        for step in range(3):
            weights = ours.state_dict()
            for micro in (2 * step, 2 * step + 1):
                feed(fed, other, gradients(plain, weights, loss, micro))
            other.step()
            other.zero_grad()
            train(ours, opt, 1, first=step, loss=loss, micro_batches=2)
    assert same_bits(ours, fed)
    assert not same_bits(ours, make(kind))


@pytest.mark.parametrize("accumulate", ["auto", 2])
def test_a_batch_that_comes_twice_counts_double(accumulate):
    ours, plain, fed = make(), make(), make()
    # A core smaller than the gradient's rank: what is left of it is more than noise.
    exact = {"wire": "fp32", "codec": "svd", "ratio": 4 / 256}
    with default(ours, accumulate=accumulate, **exact) as opt, default(fed, **exact) as other:
        for step in range(3):
            found = gradients(plain, ours.state_dict(), loss_of, step)
            feed(fed, other, [2 * g for g in found])
            other.step()
            other.zero_grad()
            train(ours, opt, 1, first=step, loss=each_twice, micro_batches=2)
    assert distance(ours, fed) <= 1e-6  # Cores are added in another order.


@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_tied_weights_in_reentrant_segments_add_up(accumulate):
    # Each segment is a backward of its own: the last block's comes first.
    ours, plain, fed = make(Tied, reentrant=True), make(Stack), make(Tied)
    first = [name for name, _ in ours.named_parameters()].index("blocks.0.up.weight")
    with default(ours, accumulate=accumulate) as opt, default(fed) as other:
        for step in range(4):
            names = [name for name, _ in plain.named_parameters()]
            found = gradients(plain, ours.state_dict(), loss_of, step)
            of_last = found.pop(names.index("blocks.1.up.weight"))
            of_first, found[first] = found[first], of_last
            feed(fed, other, found)
            (fed.blocks[0].up.weight * of_first).sum().backward()
            other.step()
            other.zero_grad()
            train(ours, opt, 1, first=step)
    assert same_bits(ours, fed)


@pytest.mark.parametrize("kind", [Stack, CheckpointedReentrant])
def test_grad_scaler_in_float16_changes_no_update_and_skips_whole_steps(kind):
    ours, plain, fed = make(kind), make(), make()
    loss = autocast_loss(torch.float16)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with default(ours, accumulate=1) as opt, default(fed) as other:
        for step in range(6):
            scale, before = scaler.get_scale(), ours.state_dict()
            overflows = step in (0, 3)  # 0: projectors must not be learned from it.
            factor = float("inf") if overflows else 1.0
            if not overflows:
                scaled = gradients(plain, before, scaled_by(scale, loss), step)
                feed(fed, other, [g / scale for g in scaled])
                other.step()
                other.zero_grad()
            before = weights_of(ours)
            (scaler.scale(loss(ours, step)) * factor).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            opt.synchronize()
            unchanged = all(torch.equal(p, before[n]) for n, p in ours.named_parameters())
            assert unchanged == overflows
            assert scaler.get_scale() == (scale / 2 if overflows else scale)
    assert same_bits(ours, fed)


def backward_with_nan(model, name, step, loss=loss_of):
    """A backward in which the gradient of one weight, or of all, is not finite."""
    if name is None:
        (loss(model, step) * float("nan")).backward()
        return
    hook = model.get_parameter(name).register_hook(lambda g: g * float("nan"))
    loss(model, step).backward()
    hook.remove()


@pytest.mark.parametrize(
    ("steps_before", "bad", "name"),
    [(0, (0, 1), None), (2, (0,), "blocks.0.up.weight"), (2, (1,), "blocks.1.up.bias")],
    ids=["first-step", "first-backward", "last-backward"],
)
def test_a_step_whose_gradient_is_not_finite_never_was(steps_before, bad, name):
    ours, plain = make(), make()
    loss = autocast_loss(torch.bfloat16)
    with default(ours) as opt, default(plain) as other:
        for model, optimizer in ((ours, opt), (plain, other)):
            train(model, optimizer, steps_before, loss=loss, micro_batches=2)
        before = weights_of(ours)
        for micro in (0, 1):
            if micro in bad:
                backward_with_nan(ours, name, 90 + micro, loss)
            else:
                loss(ours, 90 + micro).backward()
        opt.step()
        assert opt.overflowed
        opt.zero_grad()
        opt.synchronize()
        assert all(torch.equal(p, before[n]) for n, p in ours.named_parameters())
        for model, optimizer in ((ours, opt), (plain, other)):
            train(model, optimizer, 3, first=steps_before, loss=loss, micro_batches=2)
    assert same_bits(ours, plain)


def test_projectors_are_not_learned_from_a_gradient_that_is_not_finite():
    # Weights whose gradient is whole may learn theirs in a step that is skipped.
    name = "blocks.0.up.weight"
    ours, plain = make(), make()
    with default(ours) as opt, default(plain) as other:
        backward_with_nan(ours, name, 90)
        opt.step()
        opt.zero_grad()
        codecs = []
        for model, optimizer in ((ours, opt), (plain, other)):
            train(model, optimizer, 1)
            index = [w.name for w in optimizer.weights].index(name)
            codecs.append(optimizer.engine.weight_state(index)["codec"])
    assert torch.equal(*codecs)
    assert all(torch.isfinite(p).all() for p in ours.parameters())


def test_with_a_promise_only_the_weight_whose_gradient_is_not_finite_stays():
    model = make()
    with default(model, accumulate=1) as opt:
        train(model, opt, 2)
        opt.synchronize()
        before = weights_of(model)
        backward_with_nan(model, "blocks.0.up.weight", 5)
        opt.step()
        opt.zero_grad()
        opt.synchronize()
        assert opt.overflowed
        after = weights_of(model)
        stayed = {name for name, weight in after.items() if torch.equal(weight, before[name])}
        compressed = {w.name for w in opt.weights}
        assert compressed & stayed == {"blocks.0.up.weight"}
        assert set(after) - compressed <= stayed
        train(model, opt, 2, first=6)
        assert not opt.overflowed
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("accumulate", ["auto", 2])
def test_evaluation_in_inference_mode_sees_every_update_and_changes_no_bit(accumulate):
    link = sw.Link(d2h_gbps=1e-3, h2d_gbps=1e-3)  # Updates are under way long after step().
    ours, quiet = make(), make()
    loss = autocast_loss(torch.bfloat16)

    def evaluate(model):
        with torch.inference_mode():
            return model.eval()(batch(70)[0])

    with default(ours, link=link, accumulate=accumulate) as opt, default(quiet) as other:
        for step in range(3):
            for micro in (2 * step, 2 * step + 1):
                loss(ours.train(), micro).backward()
                evaluate(ours)
            opt.step()
            seen = evaluate(ours)
            opt.zero_grad()
            train(quiet.train(), other, 1, first=step, loss=loss, micro_batches=2)
            other.synchronize()
            assert torch.equal(seen, evaluate(quiet))
    assert same_bits(ours, quiet)
