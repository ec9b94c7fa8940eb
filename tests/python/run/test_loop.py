"""The training loop: rates, accumulation, clipping, skipped steps, evaluation."""

from __future__ import annotations

import math
import time

import late_device
import pytest
import torch
from sluiceway.base.interrupt import Interrupt
from sluiceway.config.file import load_config
from sluiceway.config.schema import TrainSection
from sluiceway.errors import Error, InvalidArgument
from sluiceway.optim.native import NativeAdamW
from sluiceway.run.checkpoint import Position
from sluiceway.run.loop import Loop, learning_rates
from sluiceway.run.session import open_context, read_inputs
from sluiceway.run.step_figures import step_figures
from sluiceway.text.batches import Prefetch
from transformers import get_scheduler


@pytest.fixture
def open_loop(tiny_model, write_config):
    """Build a loop of plain AdamW; gives it, its context and the lines it will write."""

    def make(trained=True, **train):
        config = load_config(write_config(tiny_model, train=train))
        inputs = read_inputs(config, tiny_model)
        context = open_context(config, inputs, tiny_model, None)
        lines = []
        position = Position()
        loop = Loop(config, context, position, Interrupt(), lines.append, None)
        return loop, context, lines, position

    return make


def poison(context, *steps):
    """Make the loss NaN in the forwards with these numbers, counted from 1."""
    forward, count = context.model.forward, 0

    def poisoned(*args, **kwargs):
        nonlocal count
        result = forward(*args, **kwargs)
        if context.model.training:
            count += 1
            if count in steps:
                result.loss = result.loss * math.nan
        return result

    context.model.forward = poisoned


def weights_of(context):
    return [p.detach().clone() for p in context.model.parameters()]


# ---- Learning rates ----


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, *(0.5 + 0.5 * math.cos(math.pi * k / 4) for k in (1, 2, 3))]),
    ],
)
def test_rate_warms_up_linearly_and_then_follows_the_schedule(schedule, expected):
    train = TrainSection(lr=2.0, steps=6, warmup_steps=2, schedule=schedule)
    rate = learning_rates(train)
    rates = [rate(step) / 2.0 for step in range(6)]
    assert rates == pytest.approx(expected, abs=1e-15)


def test_run_that_is_all_warmup_has_a_rate_in_every_step():
    train = TrainSection(lr=1.0, steps=4, warmup_steps=4)
    rate = learning_rates(train)
    assert [rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("constant_with_warmup", {}),
        ("linear", {}),
        ("cosine", {}),
        ("cosine", {"num_cycles": 1.5}),
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("cosine_with_min_lr", {"min_lr": 0.3}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ("polynomial", {"lr_end": 0.01, "power": 2.0}),
        ("inverse_sqrt", {"timescale": 7}),
        ("warmup_stable_decay", {"num_decay_steps": 4, "min_lr_ratio": 0.2}),
    ],
)
def test_rates_after_the_warmup_are_those_of_transformers(schedule, options):
    train = TrainSection(
        lr=2.0, steps=17, warmup_steps=3, schedule=schedule, schedule_options=options
    )
    rate, optimizer = learning_rates(train), torch.optim.SGD([torch.zeros(1)], lr=2.0)
    theirs = get_scheduler(schedule, optimizer, 3, 17, options)
    for step in range(17):
        if step >= 3:
            assert rate(step) == theirs.get_last_lr()[0], step
        else:
            assert rate(step) == 2.0 * (step + 1) / 3
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    ("schedule", "options", "said"),
    [
        ("constant", {"power": 2}, "the schedule constant has no options"),
        ("linear", {"power": 2}, "linear: got an unexpected keyword argument 'power'"),
        ("warmup_stable_decay", {}, "num_decay_steps"),
        ("cosine_with_min_lr", {}, "min_lr"),
        ("polynomial", {"lr_end": 3.0}, "lr_end"),
        ("cosine", {"num_cycles": "many"}, "cosine: "),
    ],
)
def test_options_that_do_not_suit_the_schedule_are_one_clear_error(schedule, options, said):
    train = TrainSection(lr=2.0, steps=17, schedule=schedule, schedule_options=options)
    with pytest.raises(InvalidArgument, match=r"train\.schedule_options") as error:
        learning_rates(train)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("given", "steps"), [(0, 0), (0.1, 2), (0.25, 5), (1, 1), (7, 7)])
def test_warmup_is_steps_or_their_share(given, steps):
    assert TrainSection(steps=17, warmup_steps=given).warmup == steps


# ---- Steps ----


def test_accumulated_micro_batches_give_the_update_of_one_large_batch(open_loop):
    results = []
    for shape in ({"micro_batch": 6, "accumulate": 1}, {"micro_batch": 2, "accumulate": 3}):
        loop, context, lines, _ = open_loop(steps=3, lr=1e-3, **shape)
        loop.run()
        results.append((weights_of(context), [line["loss"] for line in lines[1:]]))
    (one, losses_one), (many, losses_many) = results
    assert losses_one == pytest.approx(losses_many, rel=1e-5)
    for a, b in zip(one, many, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=2e-5)


def test_native_step_from_equal_gradients_is_torchs_with_its_clipping():
    generator = torch.Generator().manual_seed(2)
    ours, theirs = ([torch.nn.Parameter(torch.ones(7, 5)) for _ in range(3)] for _ in range(2))
    mine = NativeAdamW(ours, 0.1, False, lr=1e-2)
    plain = torch.optim.AdamW(theirs, lr=1e-2, foreach=False)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(7, 5, generator=generator)
            b.grad = a.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, 0.1)
        mine.step(), plain.step()
        assert mine.stats()["grad_norm"] == pytest.approx(norm.item(), rel=1e-6)
        assert norm > 0.1
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=0)


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(open_loop):
    weights = []
    for seed in (3, 3, 4):
        loop, context, _, _ = open_loop(steps=3, seed=seed)
        loop.run()
        weights.append(torch.cat([w.flatten() for w in weights_of(context)]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_every_line_has_the_fields_of_the_run_folder(open_loop):
    loop, _, lines, _ = open_loop(steps=2, eval_every=1)
    loop.run()
    assert [line["step"] for line in lines] == [0, 1, 2]
    fields = {"loss", "lr", "grad_norm", "tokens", "skipped", "loss_scale", "seconds",
              "device_seconds", "stall_seconds", "host_seconds", "data_seconds",
              "eval_loss"}  # fmt: skip
    for line in lines[1:]:
        assert fields <= line.keys()
        assert line["bytes"] == {"d2h": 0, "h2d": 0, "disk_read": 0, "disk_written": 0}
        assert set(line["peak_bytes"]) == {"device", "host", "pinned", "process"}
        assert line["tokens"] == 2 * 32
        assert 0 < line["device_seconds"] <= line["seconds"]
        assert 0 < line["data_seconds"] < line["seconds"]


def test_data_that_comes_late_is_in_the_step_and_not_in_the_devices_time(open_loop, monkeypatch):
    late, take = 0.05, Prefetch.next

    def slow(prefetch):
        time.sleep(late)
        return take(prefetch)

    monkeypatch.setattr(Prefetch, "next", slow)
    loop, _, lines, _ = open_loop(steps=8, accumulate=2)
    loop.run()
    for line in lines[1:]:
        assert 2 * late <= line["data_seconds"] < line["seconds"]
        assert line["device_seconds"] <= line["seconds"] - line["data_seconds"]
    timed = lines[1:][3:]
    share = sum(line["data_seconds"] for line in timed) / sum(line["seconds"] for line in timed)
    assert step_figures(lines)["data_share"] == pytest.approx(share)
    assert share > 0.1


def test_evaluation_is_the_mean_over_held_out_tokens_and_changes_nothing(open_loop):
    loop, context, lines, _ = open_loop(steps=1, eval_sequences=None, lr=0.0)
    loop.run()
    total = count = 0.0
    held_out = context.inputs.held_out
    for k in range(len(held_out)):
        start = int(held_out.starts[k])
        ids = torch.tensor(held_out.tokens[start : start + 32], dtype=torch.long)[None]
        with torch.no_grad():
            logits = context.model(input_ids=ids).logits.double()
        total += torch.nn.functional.cross_entropy(
            logits[0, :-1], ids[0, 1:], reduction="sum"
        ).item()
        count += 31
    assert lines[0]["eval_loss"] == pytest.approx(total / count, rel=1e-6)
    assert lines[1]["eval_loss"] == lines[0]["eval_loss"]


def test_loss_that_is_not_a_number_skips_the_step_and_training_goes_on(open_loop):
    loop, context, lines, position = open_loop(steps=4)
    poison(context, 2)
    loop.run()
    assert [line["skipped"] for line in lines[1:]] == [0, 1, 0, 0]
    assert math.isnan(lines[2]["loss"])
    assert (position.step, position.skipped, position.skipped_in_row) == (4, 1, 0)


def test_a_late_device_reads_the_loss_after_the_step_and_skips_as_the_host_device(
    open_loop, monkeypatch
):
    told = []

    def fetch(_, value):
        return lambda: (told.append("loss"), value)[1]

    late_device.use(monkeypatch)
    monkeypatch.setattr(late_device.LateOps, "fetch", fetch)
    loop, context, lines, position = open_loop(steps=3, accumulate=2)
    poison(context, 4)
    step = context.engine.optimizer.step
    monkeypatch.setattr(
        context.engine.optimizer, "step", lambda *a: (told.append("step"), step(*a))[1]
    )
    loop.run()
    assert [line["skipped"] for line in lines[1:]] == [0, 1, 0]
    assert math.isnan(lines[2]["loss"])
    assert (position.skipped, position.skipped_in_row) == (1, 0)
    assert all(torch.isfinite(p).all() for p in context.model.parameters())
    assert told == ["step", "loss", "loss"] * 3


def test_skipped_step_leaves_every_weight_as_it_was(open_loop):
    loop, context, _, _ = open_loop(steps=1, accumulate=2)
    before = weights_of(context)
    poison(context, 2)  # The first micro-batch has left gradients behind.
    loop.run()
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(context), strict=True))
    assert all(p.grad is None for p in context.model.parameters())


def test_gradient_that_is_not_finite_skips_the_step_though_the_loss_is(open_loop):
    loop, context, lines, _ = open_loop(steps=2)
    parameter = next(iter(context.model.parameters()))
    count = 0

    def infinite(gradient):
        nonlocal count
        count += 1
        return gradient * math.inf if count == 1 else gradient

    parameter.register_hook(infinite)
    loop.run()
    assert [line["skipped"] for line in lines[1:]] == [1, 0]
    assert all(torch.isfinite(p).all() for p in context.model.parameters())


def test_too_many_skipped_steps_in_a_row_stop_the_run_and_name_the_step(open_loop):
    loop, context, lines, _ = open_loop(steps=9, max_skipped=3)
    poison(context, 2, 4, 5, 6)
    with pytest.raises(Error, match=r"step 6: skipped, as were all of the last 3 steps") as stop:
        loop.run()
    assert "the loss is nan" in str(stop.value)
    assert lines[-1]["step"] == 6


def test_float16_autocast_scales_the_loss_and_backs_off_after_an_overflow(tiny_model, write_config):
    path = write_config(tiny_model, train={"steps": 3}, model={"autocast": "fp16"})
    config = load_config(path)
    context = open_context(config, read_inputs(config, tiny_model), tiny_model, None)
    lines = []
    poison_gradient = iter([True, False, False])
    next(iter(context.model.parameters())).register_hook(
        lambda g: g * math.inf if next(poison_gradient) else g
    )
    Loop(config, context, Position(), Interrupt(), lines.append, None).run()
    assert [line["skipped"] for line in lines[1:]] == [1, 0, 0]
    assert [line["loss_scale"] for line in lines[1:]] == [2.0**15] * 3
