"""Weights that are frozen and trained again in the middle of a run."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import Bare, Stack, loss_of, make, same_bits, update_error
from torch.nn.utils import clip_grad_norm_
from twins import LR, identity, train
from updates import SLOW, driven_error

STEPS = 8
EPS = 1e-6  # Adam divides by less noise where gradients are small.
BOUND = 0.01  # Below the norm of every gradient of these models, so that all is clipped.
MODELS = pytest.mark.parametrize(
    "make_model", [lambda: make(Bare), lambda: make(Stack)], ids=["bare", "stack"]
)


def error_of(drive, make_model):
    return driven_error(drive, make_model, eps=EPS)


def layers_of(model):
    """Modules that are frozen as a whole."""
    return list(model.layers if isinstance(model, Bare) else model.blocks)


def train_only(model, layers):
    for layer in layers_of(model):
        layer.requires_grad_(layer in layers)


def freeze_first(model):
    train_only(model, layers_of(model)[1:])


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def frozen_gradients_go(model, opt):
    for p in model.parameters():
        if not p.requires_grad:
            p.grad = None


def clip_trained(model, opt):
    clip_grad_norm_(trained(model), BOUND)


def clip_all(model, opt):
    clip_grad_norm_(model.parameters(), BOUND)


def nothing(model, opt):
    pass


def by_hand(model, opt):
    for p in trained(model):
        p.grad = None


def zero_grad(model, opt):
    opt.zero_grad()


# ---- Frozen between two steps ----


@MODELS
@pytest.mark.parametrize("schedule", ["once", "back-and-forth", "from-the-last", "one-at-a-time"])
@pytest.mark.parametrize(
    ("act", "clear"),
    [
        (frozen_gradients_go, zero_grad),
        (clip_trained, zero_grad),
        (clip_all, zero_grad),
        (nothing, by_hand),
        (clip_trained, by_hand),
    ],
    ids=["frozen-none", "clip-trained", "clip-all", "by-hand", "clip-and-by-hand"],
)
def test_schedules_that_freeze_are_adamws(make_model, schedule, act, clear):
    def choose(model, step):
        layers = layers_of(model)
        if schedule == "once" and step == 3:
            freeze_first(model)
        elif schedule == "back-and-forth":
            train_only(model, layers[step // 2 % 2 :])
        elif schedule == "from-the-last":  # ULMFiT.
            train_only(model, layers[-1 - step // 3 :])
        elif schedule == "one-at-a-time" and step % 2 == 0:  # LISA.
            train_only(model, [layers[step // 2 * 2 % len(layers)]])

    def drive(model, opt):
        for step in range(STEPS):
            choose(model, step)
            loss_of(model, step).backward()
            act(model, opt)
            opt.step()
            clear(model, opt)

    assert error_of(drive, make_model) <= 2e-5  # Of some processors 1.2e-5: Adam enlarges rounding.


def test_every_compressed_weight_may_be_frozen_for_some_steps():
    def drive(model, opt):
        matrices = [block.up.weight for block in model.blocks]
        matrices += [block.down.weight for block in model.blocks]
        for step in range(STEPS):
            for p in matrices:
                p.requires_grad_(step < 2 or step > 4)
            loss_of(model, step).backward()
            clip_trained(model, opt)
            opt.step()
            by_hand(model, opt)

    assert error_of(drive, make) <= 1e-5


@MODELS
def test_a_grad_scaler_beside_a_schedule(make_model):
    def drive(model, opt):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(STEPS):
            train_only(model, layers_of(model)[step // 3 :])
            scaler.scale(loss_of(model, step)).backward()
            scaler.unscale_(opt)
            clip_trained(model, opt)
            scaler.step(opt)
            scaler.update()
            by_hand(model, opt)

    assert error_of(drive, make_model) <= 1e-5


# ---- Frozen, or trained again, within a step ----


@MODELS
@pytest.mark.parametrize("act", [nothing, clip_trained, clip_all])
@pytest.mark.parametrize("thaw", [False, True], ids=["freeze", "thaw"])
def test_between_two_micro_batches(make_model, act, thaw):
    def drive(model, opt):
        for step in range(STEPS):
            for micro in range(3):
                if step >= 2:  # What was gathered before stays, as torch's does.
                    train_only(model, layers_of(model)[int((micro == 1) != thaw) :])
                loss_of(model, 3 * step + micro).backward()
            act(model, opt)
            opt.step()
            opt.zero_grad()

    assert error_of(drive, make_model) <= 1e-5


@MODELS
def test_what_was_frozen_in_the_last_micro_batch_keeps_its_own_factor(make_model):
    def drive(model, opt):
        for step in range(STEPS):
            train_only(model, layers_of(model))
            loss_of(model, 2 * step).backward()
            freeze_first(model)
            loss_of(model, 2 * step + 1).backward()
            clip_trained(model, opt)
            opt.step()
            opt.zero_grad()

    assert error_of(drive, make_model) <= 1e-5


def test_our_clipping_where_some_were_frozen_within_the_step():
    def drive(model, opt):
        for step in range(STEPS):
            train_only(model, layers_of(model))
            loss_of(model, 2 * step).backward()
            freeze_first(model)
            loss_of(model, 2 * step + 1).backward()
            if isinstance(opt, torch.optim.AdamW):
                clip_trained(model, opt)
                clip_grad_norm_(model.parameters(), BOUND / 2)
            else:
                opt.clip_grad_norm_(BOUND, parameters=trained(model))
                clip_grad_norm_(model.parameters(), BOUND / 2)
            opt.step()
            opt.zero_grad()

    assert error_of(drive, lambda: make(Bare)) <= 1e-5


def refused(make_model, drive, words):
    model = make_model()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 1)
        with pytest.raises(sw.InvalidArgument, match=words):
            drive(model, opt)
        opt.zero_grad()
        train_only(model, layers_of(model))
        train(model, opt, 2)  # Once the gradients are gone it goes on.


@MODELS
@pytest.mark.parametrize("kept", ["frozen", "trained"])
@pytest.mark.parametrize("then", ["step", "forward", "backward"])
def test_a_part_that_is_removed_within_the_step_is_named(make_model, kept, then):
    def drive(model, opt):
        loss_of(model, 0).backward()
        freeze_first(model)
        loss_of(model, 1).backward()
        later = loss_of(model, 2) if then == "backward" else None
        for p in model.parameters():
            if p.requires_grad != (kept == "trained"):
                p.grad = None
        if then == "step":
            opt.step()
        elif then == "forward":
            loss_of(model, 2)
        else:
            later.backward()

    refused(make_model, drive, r"the gradient of .* was removed, that of .* was not")


@MODELS
@pytest.mark.parametrize("then", ["step", "forward"])
def test_a_weight_that_is_frozen_after_its_backward_and_loses_its_gradient(make_model, then):
    def drive(model, opt):
        loss_of(model, 0).backward()
        freeze_first(model)
        frozen_gradients_go(model, opt)
        if then == "step":
            opt.step()
        else:
            loss_of(model, 1)

    refused(make_model, drive, r"the gradient of .*0.* was removed, that of .* was not")


@MODELS
def test_all_gradients_may_go_after_a_weight_was_frozen(make_model):
    def drive(model, opt):
        loss_of(model, 0).backward()
        freeze_first(model)
        opt.zero_grad()
        train(model, opt, 3, first=1)

    assert error_of(drive, make_model) <= 1e-5


def test_gradients_of_a_second_loss_may_reach_frozen_ones_again():
    """One optimizer trains a critic and the model that it judges."""

    def drive(model, opt):
        for step in range(STEPS):
            loss_of(model, 2 * step).backward()
            freeze_first(model)
            loss_of(model, 2 * step + 1).backward()
            train_only(model, layers_of(model))
            clip_all(model, opt)
            opt.step()
            opt.zero_grad()

    assert error_of(drive, lambda: make(Bare)) <= 1e-5


# ---- What else hangs on who carries ----


def sixteen_bits():
    return make(Bare).bfloat16()


def sixteen_bit_loss(model, step):
    return (
        model(torch.randn(4, 16, generator=torch.Generator().manual_seed(step)).bfloat16())
        .square()
        .mean()
    )


def test_the_weights_are_left_as_they_were_found():
    model = sixteen_bits()
    with identity(model) as opt:
        for step in range(4):
            train_only(model, layers_of(model)[step % 3 :])
            sixteen_bit_loss(model, step).backward()
            assert [p.grad is not None for p in model.parameters()] == [
                number >= step % 3 for number in range(3)
            ]
            opt.step()
            opt.zero_grad()
    train_only(model, layers_of(model))
    assert [p.grad_dtype for p in model.parameters()] == [torch.bfloat16] * 3
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_that_was_assigned_to_a_frozen_weight_is_named():
    model = sixteen_bits()
    with identity(model) as opt:
        sixteen_bit_loss(model, 0).backward()
        opt.step()
        opt.zero_grad()
        freeze_first(model)
        model.layers[0].weight.grad = torch.ones(256, 256, dtype=torch.bfloat16)
        sixteen_bit_loss(model, 1).backward()
        with pytest.raises(sw.InvalidArgument, match=r"layers\.0\.weight has a \.grad that no"):
            opt.step()
    assert model.layers[0].weight.grad.dtype == torch.bfloat16


@pytest.fixture
def nothing_stays_compiled():
    yield
    torch.compiler.reset()  # Else every later step of this process waits for its updates.


@pytest.mark.usefixtures("nothing_stays_compiled")
def test_a_graph_that_was_compiled_while_a_weight_was_frozen():
    """The graph has no gradient for the weight afterwards, but its hooks are still called."""

    def drive(model, opt):
        torch.compiler.reset()
        compiled = torch.compile(model, backend="aot_eager")
        for step in range(STEPS):
            train_only(model, layers_of(model)[step // 2 % 2 :][:1])
            loss_of(compiled, step).backward()
            clip_trained(model, opt)
            opt.step()
            by_hand(model, opt)

    assert error_of(drive, make) <= 1e-5


@pytest.mark.parametrize("codec", ["identity", "block_random"])
def test_a_run_that_is_resumed_while_another_weight_carries_has_the_same_bits(codec):
    def steps(model, opt, first, last):
        for step in range(first, last):
            train_only(model, layers_of(model)[int(2 <= step < 5) :])
            for micro in range(2):
                sixteen_bit_loss(model, 2 * step + micro).backward()
            clip_trained(model, opt)
            opt.step()
            opt.zero_grad()

    whole, parts = sixteen_bits(), sixteen_bits()
    with sw.SubspaceAdamW(whole, lr=LR, codec=codec) as opt:
        steps(whole, opt, 0, 7)
    with sw.SubspaceAdamW(parts, lr=LR, codec=codec) as opt:
        steps(parts, opt, 0, 4)
        state, weights = opt.state_dict(), parts.state_dict()
        weights = {name: w.clone() for name, w in weights.items()}
    again = sixteen_bits()
    again.load_state_dict(weights)
    with sw.SubspaceAdamW(again, lr=LR, codec=codec) as opt:
        opt.load_state_dict(state)
        steps(again, opt, 4, 7)
    assert same_bits(whole, again)
    assert update_error(sixteen_bits(), whole, again) == 0
