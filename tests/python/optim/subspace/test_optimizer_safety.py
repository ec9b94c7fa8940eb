"""User code around SubspaceAdamW never silently loses a gradient, an update or a state."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import sluiceway as sw
import torch
from small_models import Stack, batch, loss_of, make, same_bits, weights_of
from torch import nn
from torch.nn import functional
from twins import LR, train

SLOW = sw.Link(d2h_gbps=1e-4, h2d_gbps=1e-4)  # A step is still under way long after step().


def block_random(model, **arguments):
    return sw.SubspaceAdamW(model, lr=LR, codec="block_random", **arguments)


class Breaks(torch.autograd.Function):
    """Passes values through; its backward raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("backward broke")


@pytest.mark.parametrize("clear", [True, False], ids=["zero_grad", "next-forward"])
def test_a_backward_that_raises_leaves_nothing_behind(clear):
    ours, plain = make(), make()
    with block_random(ours) as opt, block_random(plain) as other:
        train(ours, opt, 2)
        x, _ = batch(7)
        half = ours.blocks[0](ours.enter(x))
        with pytest.raises(RuntimeError, match="broke"):
            ours.leave(ours.blocks[1](Breaks.apply(half))).sum().backward()
        if clear:
            opt.zero_grad()
        else:  # Ordinary gradients are torch's to clear; the cores go with the broken backward.
            for p in ours.parameters():
                p.grad = None
        train(ours, opt, 2, first=2)
        train(plain, other, 4)
    assert same_bits(ours, plain)


def test_the_state_of_a_fresh_optimizer_takes_it_back_to_the_start():
    ours, plain = make(), make()
    with block_random(ours) as opt, block_random(plain) as other:
        start, weights = opt.state_dict(), weights_of(ours)
        train(ours, opt, 3)
        opt.load_state_dict(start)
        ours.load_state_dict(weights)
        train(ours, opt, 3)
        train(plain, other, 3)
    assert same_bits(ours, plain)


def test_weights_loaded_after_a_step_are_not_overwritten_by_its_updates():
    model = make()
    weights = weights_of(model)
    with block_random(model, link=SLOW) as opt:
        train(model, opt, 1)
        model.load_state_dict(weights)
        opt.synchronize()
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())


def test_weights_read_through_state_dict_after_a_step_have_its_updates():
    ours, waited = make(), make()
    with block_random(ours, link=SLOW) as opt, block_random(waited, link=SLOW) as other:
        train(waited, other, 1)
        other.synchronize()
        train(ours, opt, 1)
        assert all(torch.equal(p, weights_of(waited)[n]) for n, p in ours.state_dict().items())


class Folded(nn.Module):
    """A model that, in eval(), reads its weight without calling the module that holds it."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, 512)
        self.layer = nn.Linear(512, 512)
        self.leave = nn.Linear(512, 8)

    def forward(self, x):
        x = self.enter(x)
        layer = self.layer if self.training else lambda x: x @ self.layer.weight.t()
        return self.leave(layer(x))


def test_evaluation_that_goes_around_modules_sees_the_updates_of_the_last_step():
    ours, waited = make(Folded), make(Folded)
    with block_random(ours, link=SLOW) as opt, block_random(waited, link=SLOW) as other:
        for step in range(2):
            train(waited.train(), other, 1, first=step)
            other.synchronize()
            train(ours.train(), opt, 1, first=step)
            with torch.inference_mode():
                x, _ = batch(50)
                assert torch.equal(ours.eval()(x), waited.eval()(x))


@pytest.mark.parametrize("which", [0, 1], ids=["sentinel", "other"])
def test_an_assigned_gradient_is_refused(which):
    model = make(Stack)
    with block_random(model) as opt:
        weight = opt.weights[which].parameter
        weight.grad = torch.ones_like(weight)
        with pytest.raises(sw.InvalidArgument, match=r"no backward\(\) gave it"):
            opt.step()
        weight.grad = None
        train(model, opt, 1)


def test_clipping_between_two_backwards_is_refused():
    model = make()
    with block_random(model):
        loss_of(model, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.raises(sw.InvalidArgument, match="between two backwards"):
            loss_of(model, 1).backward()


def test_a_calibration_closure_need_not_use_every_weight():
    model = make()

    calls = []

    def closure():
        calls.append(1)
        x, y = batch(90)
        hidden = model.blocks[0](model.enter(x))
        return functional.mse_loss(model.leave(hidden), y)

    refresh = sw.Refresh(every=2, source="closure", closure=closure, learn_steps=3)
    with sw.SubspaceAdamW(model, lr=LR, codec="sparse_learned", refresh=refresh) as opt:
        train(model, opt, 5)
        opt.synchronize()
        assert opt.skipped_steps == 0
    assert calls
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_dropped_optimizer_gives_frozen_weights_back():
    model = nn.Sequential(nn.Embedding(300, 256), nn.Linear(256, 256))
    opt = block_random(model, embeddings="frozen")
    assert not model[0].weight.requires_grad
    del opt
    assert model[0].weight.requires_grad


@pytest.mark.parametrize("copies", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_copying_is_refused_and_says_what_to_do(copies):
    with (
        block_random(make()) as opt,
        pytest.raises(sw.InvalidArgument, match=r"load its state_dict\(\)"),
    ):
        copies(opt)


def test_ordinary_parameters_the_kernel_does_not_take_are_refused_at_once():
    for spoiled in (
        torch.ones(16, dtype=torch.float64),
        torch.ones(16, dtype=torch.float16),
        torch.ones(32, 4).t(),
    ):
        model = make()
        model.register_parameter("spoiled", nn.Parameter(spoiled))
        with pytest.raises(sw.InvalidArgument, match=r"spoiled is .*expected contiguous float32"):
            block_random(model)
        assert not model._forward_pre_hooks


def test_betas_must_be_two():
    with pytest.raises(sw.InvalidArgument, match="expected two numbers"):
        block_random(make(), betas=(0.9, 0.99, 0.999))


def _without(key):
    def spoil(state):
        del state["state"][_last_weight(state)][key]

    return spoil


def _last_weight(state):
    return max(number for number, values in state["state"].items() if "codec" in values)


def _of_wrong_shape(state):
    values = state["state"][_last_weight(state)]
    values["exp_avg"] = values["exp_avg"][1:]


def _own(state):
    return state["sluiceway"]


def _with_broken_codec(state):
    values = state["state"][_last_weight(state)]
    values["codec"] = values["codec"][:-1]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("state"), "has no 'state'"),
        (lambda state: state["sluiceway"].pop("refresh"), "has no 'refresh'"),
        (lambda state: state["state"].pop(_last_weight(state)), "has no 'step'"),
        (_without("codec"), "has no 'codec'"),
        (_of_wrong_shape, "exp_avg of blocks.1.down.weight"),
        (_with_broken_codec, "codec|bytes"),
        (lambda state: _own(state).update(refresh=_own(state)["refresh"][:-1]), "RefreshPolicy"),
        (lambda state: _own(state).update(committed_steps=-1), "committed_steps .* is -1, expect"),
        (lambda state: _own(state).update(loss_scale=["x", 0, 0]), "a scale and two counts"),
        (lambda state: _vector(state).update(step=1.5), "step of parameter 0 is 1.5, expected"),
        (
            lambda state: _vector(state).update(exp_avg=_vector(state)["exp_avg"].double()),
            "exp_avg of parameter 0 is torch.float64, expected float32",
        ),
        (
            lambda state: state["state"][_last_weight(state)].update(low_bits=torch.zeros(3)),
            "low_bits",
        ),
    ],
    ids=[
        "state",
        "refresh",
        "weight",
        "codec",
        "shape",
        "codec-bytes",
        "refresh-bytes",
        "count",
        "loss-scale",
        "step",
        "dtype",
        "low-bits",
    ],
)
def test_a_broken_state_is_refused_whole(spoil, message):
    ours, plain = make(), make()
    with block_random(ours) as opt, block_random(plain) as other:
        train(ours, opt, 1)
        broken = copy.deepcopy(opt.state_dict())
        train(ours, opt, 1, first=1)
        spoil(broken)
        with pytest.raises(sw.Error, match=message):
            opt.load_state_dict(broken)
        train(ours, opt, 2, first=2)
        train(plain, other, 4)
    assert same_bits(ours, plain)


def _vector(state):
    """The state of one parameter that is not compressed."""
    return next(values for values in state["state"].values() if "residual" not in values)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: _vector(s).update(exp_avg=torch.zeros(3)), r"exp_avg of .* is \(3,\), expected"),
        (
            lambda s: _vector(s).update(exp_avg_sq=torch.zeros(3)),
            r"exp_avg_sq of .* is \(3,\), exp",
        ),
        (lambda s: _vector(s).pop("exp_avg"), "has no 'exp_avg', expected all of step, exp_avg, "),
        (lambda s: s["state"].update({99: {}}), "a state of parameter 99, expected 0 to 13"),
        (lambda s: s["param_groups"][0].update(lr="x"), "lr is 'x', expected in"),
    ],
    ids=["exp_avg", "exp_avg_sq", "missing", "number", "lr"],
)
def test_a_refused_state_keeps_the_gradient_that_is_gathered(spoil, words):
    model, other = make(), make()
    with (
        sw.SubspaceAdamW(model, codec="block_random", lr=LR) as opt,
        sw.SubspaceAdamW(other, codec="block_random", lr=LR) as reference,
    ):
        train(model, opt, 1)
        train(other, reference, 2)
        broken = copy.deepcopy(opt.state_dict())
        spoil(broken)
        loss_of(model, 1).backward()
        with pytest.raises(sw.InvalidArgument, match=words):
            opt.load_state_dict(broken)
        opt.step()
    assert same_bits(model, other)


def test_reading_every_attribute_changes_nothing():
    model, other = make(), make()
    with sw.SubspaceAdamW(model, codec="block_random", lr=LR, accumulate=1) as opt:
        assert len(inspect.getmembers(opt)) > 20
        train(model, opt, 3)
    with sw.SubspaceAdamW(other, codec="block_random", lr=LR, accumulate=1) as opt:
        train(other, opt, 3)
    assert same_bits(model, other)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("lr", None),
        ("lr", "1e-3"),
        ("betas", 0.9),
        ("eps", float("nan")),
        ("ratio", "0.5"),
        ("max_norm", "x"),
        ("scale", "foo"),
        ("seed", -1),
        ("seed", 1.5),
        ("seed", 2**63),
        ("codec", None),
        ("d", 0),
        ("accumulate", 0),
        ("link", (1, 2, 3)),
        ("budget", "4GiB"),
        ("refresh", 5),
    ],
)
def test_argument_of_the_wrong_kind_is_named_with_what_was_expected(argument, value):
    with pytest.raises(sw.InvalidArgument, match=f"SubspaceAdamW: {argument} .*, expected "):
        sw.SubspaceAdamW(make(), **{argument: value})
