"""A promise (`accumulate=1`) trains weights in backward: a step that comes otherwise is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import sluiceway as sw
import torch
from small_models import loss_of, make, same_bits, two_groups, weights_of
from torch import nn
from torch.optim import lr_scheduler
from twins import LR, train

NAMES = [f"blocks.{block}.{layer}.weight" for block in (0, 1) for layer in ("up", "down")]
TOLD = r"residuals of 4 weights \(blocks\.0\.up\.weight for one\), because accumulate=1"


def promised(model: nn.Module, accumulate: int | str = 1, **arguments) -> sw.SubspaceAdamW:
    arguments = {"codec": "block_random", "accumulate": accumulate, **arguments}
    return sw.SubspaceAdamW(model, lr=LR, **arguments)


@pytest.fixture
def silent():
    """Fail on any warning but torch's own about a scheduler that steps first."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        yield


# ---- Rates ----


def set_all(key: str, value: object) -> Callable[[sw.SubspaceAdamW], None]:
    def change(opt: sw.SubspaceAdamW) -> None:
        for group in opt.param_groups:
            group[key] = value

    return change


EDITS = {
    "lr": (set_all("lr", 3e-4), "lr", 0.0003, LR),
    "lr-as-tensor": (set_all("lr", torch.tensor(0.5)), "lr", 0.5, LR),
    "betas": (set_all("betas", (0.9, 0.5)), "betas[1]", 0.5, 0.999),
    "eps": (set_all("eps", 1e-3), "eps", 0.001, 1e-8),
    "weight_decay": (set_all("weight_decay", 0.0), "weight_decay", 0.0, 0.01),
}


@pytest.mark.parametrize(("edit", "key", "now", "was"), EDITS.values(), ids=EDITS.keys())
def test_a_value_set_between_backward_and_step_is_refused_until_it_is_put_back(edit, key, now, was):
    codec = "auto" if key == "lr" else "block_random"
    model, twin = make(), make()
    with promised(model, codec=codec) as opt, promised(twin, codec=codec) as other:
        loss_of(model, 0).backward()
        before = [dict(group) for group in opt.param_groups]
        edit(opt)
        with pytest.raises(sw.InvalidArgument) as refused:
            opt.step()
        assert f"{key} of {NAMES[0]} is {now} and was {was} in backward()" in str(refused.value)
        assert f"set {key} before backward(), or use accumulate='auto'" in str(refused.value)
        for group, values in zip(opt.param_groups, before, strict=True):
            group.update(values)
        opt.step()  # Nothing was lost.
        opt.zero_grad()
        train(model, opt, 2, first=1)
        train(twin, other, 3)
    assert same_bits(model, twin)


SCHEDULERS = {
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step)),
    "one-cycle": lambda opt: lr_scheduler.OneCycleLR(opt, LR, total_steps=12),
    "restarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 2),
    "sequence": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, 1.0, 2), lr_scheduler.ExponentialLR(opt, 0.5)], [2]
    ),
}


def scheduled(make_scheduler, place: str, accumulate: int | str, backwards: int) -> nn.Module:
    model = make()
    with promised(model, accumulate) as opt:
        scheduler = make_scheduler(opt)
        for step in range(4):
            for micro in range(backwards):
                if place == "before the last backward" and micro == backwards - 1:
                    scheduler.step()
                loss_of(model, backwards * step + micro).backward()
            opt.step()
            if place == "after step":
                scheduler.step()
            opt.zero_grad()
    return model


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("place", "backwards"), [("after step", 1), ("before the last backward", 3)]
)
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_scheduler_before_the_last_backward_or_after_the_step_counts(scheduler, place, backwards):
    ours = scheduled(scheduler, place, backwards, backwards)
    assert same_bits(ours, scheduled(scheduler, place, "auto", backwards))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("arguments", [{"residual": "none"}, {"loss_scale": 2.0}])
def test_a_value_that_nothing_was_trained_with_may_change(arguments):
    def trained(accumulate: int | str) -> nn.Module:
        model = make()
        with promised(model, accumulate, **arguments) as opt:
            for step in range(3):
                opt.scale_loss(loss_of(model, step)).backward()
                set_all("lr", LR / (1 + step))(opt)
                opt.step()
                opt.zero_grad()
        return model

    assert same_bits(trained(1), trained("auto"))


@pytest.mark.usefixtures("silent")
def test_the_rate_of_a_group_without_residuals_may_change():
    def trained(accumulate: int | str) -> nn.Module:
        model = make()
        with promised(model, accumulate, param_groups=two_groups(model, LR)) as opt:
            for step in range(3):
                loss_of(model, step).backward()
                opt.param_groups[1]["lr"] = LR / (1 + step)  # Norms and biases.
                opt.step()
                opt.zero_grad()
        return model

    assert same_bits(trained(1), trained("auto"))


# ---- Steps that nobody takes ----


def by_zero_grad(model: nn.Module, opt: sw.SubspaceAdamW) -> None:
    opt.zero_grad()


def by_the_model(model: nn.Module, opt: sw.SubspaceAdamW) -> None:
    model.zero_grad()
    model(torch.zeros(1, 16))  # A forward notices.


def by_zeros_and_a_backward(model: nn.Module, opt: sw.SubspaceAdamW) -> None:
    opt.zero_grad(set_to_none=False)
    loss_of(model, 1).backward()


def by_zeros_and_a_step(model: nn.Module, opt: sw.SubspaceAdamW) -> None:
    opt.zero_grad(set_to_none=False)
    opt.step()


def by_a_save(model: nn.Module, opt: sw.SubspaceAdamW) -> None:
    opt.state_dict()


WAYS = {
    way.__name__: way
    for way in (by_zero_grad, by_the_model, by_zeros_and_a_backward, by_zeros_and_a_step, by_a_save)
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_backward_without_its_step_is_told_once(way):
    model = make()
    with promised(model) as opt:
        loss_of(model, 0).backward()
        with pytest.warns(RuntimeWarning, match=TOLD) as told:
            way(model, opt)
        assert len(told) == 1
        opt.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss_of(model, 2).backward()
            opt.zero_grad()
            train(model, opt, 2)


def test_a_warning_that_is_an_error_has_dropped_the_gradients_all_the_same():
    model = make()
    with promised(model) as opt:
        loss_of(model, 0).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning):
                opt.zero_grad()
        assert not opt.engine.has_gradient()
        train(model, opt, 1)


def test_a_backward_that_raises_half_way_is_told_with_the_weights_that_it_trained():
    model = make()
    with promised(model) as opt:
        x = model.blocks[0](model.enter(torch.randn(4, 16)))
        x.register_hook(lambda _: 1 / 0)
        before = weights_of(model)
        with pytest.raises(ZeroDivisionError):
            model.leave(model.blocks[1](x)).square().sum().backward()
        with pytest.warns(RuntimeWarning, match=r"2 weights \(blocks\.1\.up\.weight for one\)"):
            opt.zero_grad()
        changed = {n for n, w in model.named_parameters() if not torch.equal(w, before[n])}
        assert changed == set(NAMES[2:])


SILENT = {
    "auto": ("auto", {}, 1.0),
    "no-residual": (1, {"residual": "none"}, 1.0),
    "more-to-come": (2, {}, 1.0),
    "not-finite": (1, {}, float("nan")),
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("accumulate", "arguments", "factor"), SILENT.values(), ids=SILENT.keys())
def test_nothing_is_told_where_nothing_has_changed(accumulate, arguments, factor):
    model = make()
    with promised(model, accumulate, **arguments) as opt:
        train(model, opt, 2, micro_batches=2 if accumulate == 2 else 1)
        opt.synchronize()
        before = weights_of(model)
        (factor * loss_of(model, 5)).backward()
        opt.state_dict()
        opt.zero_grad()
        opt.synchronize()
        assert all(torch.equal(w, before[n]) for n, w in model.named_parameters())
        (factor * loss_of(model, 5)).backward()
    opt.close()
