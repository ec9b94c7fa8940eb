"""Clipping by norm: right for order 2 and inf and for groups, or refused; torch is the judge."""

from __future__ import annotations

import math

import pytest
import sluiceway as sw
import torch
from small_models import Stack, loss_of, make, update_error
from torch import nn
from torch.nn.utils import clip_grad_norm_
from twins import LR, identity

SLOW = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)
STEPS = 8
BOUND = 0.005  # Below the norm of every gradient of these models, so that all is clipped.


def everything(model):
    return [list(model.parameters())]


def by_layer(model):
    return [list(child.parameters()) for child in model.children()]


def by_shape(model):
    return [[p for p in model.parameters() if (p.dim() == 2) == matrix] for matrix in (True, False)]


def some(model):
    return [list(model.blocks[1].parameters())]


def twice_over(model):
    return [*by_layer(model), *everything(model)]


def run(model, opt, clip, micro_batches=1, steps=STEPS, **scaling):
    """Train and clip; return what `clip` returned."""
    scale, scaler = scaling.get("scale", lambda loss: loss), scaling.get("scaler")
    norms = []
    for step in range(steps):
        for micro in range(micro_batches):
            loss = loss_of(model, micro_batches * step + micro)
            (scaler.scale(loss) if scaler else scale(loss)).backward()
        if scaler:
            scaler.unscale_(opt)
        norms.append(clip(model, opt))
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        opt.zero_grad()
    return norms


def ours_of(groups, order, bound=BOUND):
    return lambda model, opt: [
        float(opt.clip_grad_norm_(bound, order, parameters=group)) for group in groups(model)
    ]


def torch_of(groups, order, bound=BOUND):
    return lambda model, opt: [float(clip_grad_norm_(g, bound, order)) for g in groups(model)]


def against_torch(groups, order, bound=BOUND, ours_scaling=None, theirs_scaling=None, **arguments):
    """Train twins; return the error of the update and both lists of norms."""
    ours, theirs = make(), make()
    micro_batches = arguments.pop("micro_batches", 1)
    with identity(ours, link=SLOW, **arguments) as opt:
        scaling = ours_scaling(opt) if ours_scaling else {}
        mine = run(ours, opt, ours_of(groups, order, bound), micro_batches, **scaling)
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    expected = run(
        theirs, reference, torch_of(groups, order, bound), micro_batches, **(theirs_scaling or {})
    )
    return update_error(make(), ours, theirs), mine, expected


def agree(mine, expected):
    for one, other in zip(mine, expected, strict=True):
        assert one == pytest.approx(other, rel=2e-6)


@pytest.mark.parametrize("order", [2, 2.0, math.inf, "inf"])
@pytest.mark.parametrize("groups", [everything, by_layer, by_shape, some, twice_over])
def test_our_clipping_is_torchs(groups, order):
    error, mine, expected = against_torch(groups, order)
    agree(mine, expected)
    assert max(expected[0]) > BOUND
    assert error <= 1e-6


@pytest.mark.parametrize("bound", [0, 1e6, math.inf])
def test_bounds_that_clip_all_or_nothing(bound):
    error, mine, expected = against_torch(everything, 2, bound)
    agree(mine, expected)
    assert error <= 1e-6


@pytest.mark.parametrize("arguments", [{"accumulate": 3}, {"norm_mode": "speculative"}, {}])
def test_after_the_last_backward_of_a_step(arguments):
    error, mine, expected = against_torch(by_layer, math.inf, micro_batches=3, **arguments)
    agree(mine, expected)
    assert error <= 1e-6


def test_a_scale_of_our_own_is_taken_out_of_the_norm():
    error, mine, expected = against_torch(
        by_layer, 2, loss_scale=1024.0, ours_scaling=lambda opt: {"scale": opt.scale_loss}
    )
    agree(mine, expected)
    assert error <= 1e-6


def test_grad_scaler_unscales_first():
    def scaler():
        return {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**10)}

    error, mine, expected = against_torch(
        by_layer, math.inf, ours_scaling=lambda opt: scaler(), theirs_scaling=scaler()
    )
    agree(mine, expected)
    assert error <= 1e-6


def test_torchs_function_sees_what_ours_left():
    def ours_then_torchs(model, opt):
        groups = by_layer(model)
        for group in groups:
            opt.clip_grad_norm_(BOUND, 2, parameters=group)
        return [float(clip_grad_norm_(model.parameters(), BOUND))]

    def torchs(model, opt):
        for group in by_layer(model):
            clip_grad_norm_(group, BOUND)
        return [float(clip_grad_norm_(model.parameters(), BOUND))]

    ours, theirs = make(), make()
    with identity(ours, link=SLOW) as opt:
        mine = run(ours, opt, ours_then_torchs)
        assert opt.stats()["grad_norm"] == pytest.approx(BOUND, rel=1e-3)
    expected = run(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), torchs)
    agree(mine, expected)
    assert update_error(make(), ours, theirs) <= 1e-6


def test_gradients_of_parameters_that_are_others_count_too():
    def only(model):
        return [{"params": list(model.blocks.parameters())}]

    ours, theirs = make(), make()
    with identity(ours, param_groups=only(ours)) as opt:
        loss_of(ours, 0).backward()
        loss_of(theirs, 0).backward()
        mine = opt.clip_grad_norm_(BOUND, parameters=ours.parameters())
        expected = clip_grad_norm_(theirs.parameters(), BOUND)
        assert float(mine) == pytest.approx(float(expected), rel=2e-6)
        assert torch.allclose(ours.leave.weight.grad, theirs.leave.weight.grad, rtol=1e-5)
        assert mine.shape == expected.shape
        assert mine.dtype == expected.dtype


def test_without_a_gradient_there_is_nothing_to_clip():
    model = make()
    with identity(model) as opt:
        assert float(opt.clip_grad_norm_(1.0)) == 0.0
        assert float(opt.clip_grad_norm_(1.0, math.inf, [])) == 0.0
        loss_of(model, 0).backward()
        assert float(opt.clip_grad_norm_(1.0, math.inf, [])) == 0.0


def test_a_gradient_that_is_not_finite_is_left_to_be_skipped():
    model = make()
    with identity(model) as opt:
        (loss_of(model, 0) * math.inf).backward()
        assert not math.isfinite(float(opt.clip_grad_norm_(1.0)))
        opt.step()
        assert opt.overflowed


def test_lossy_codecs_clip_by_the_norm_of_their_cores():
    model = make()
    with sw.SubspaceAdamW(model, lr=LR, codec="block_random", residual="none") as opt:
        loss_of(model, 0).backward()
        compressed = [w.parameter for w in opt.weights]
        norm = float(opt.clip_grad_norm_(math.inf, parameters=compressed))
        assert float(opt.clip_grad_norm_(norm / 4, parameters=compressed)) == pytest.approx(norm)
        after = float(opt.clip_grad_norm_(math.inf, parameters=compressed))
        assert after == pytest.approx(norm / 4, rel=1e-4)


# ---- What is refused ----


def test_orders_that_cores_do_not_know():
    with identity(make()) as opt:
        for order in (1, 0, 3.0, -math.inf, math.nan, "fro", None):
            with pytest.raises(sw.Unavailable, match=r"norm_type is .*, expected 2 or inf"):
                opt.clip_grad_norm_(1.0, order)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((math.nan,), "max_norm is nan"),
        ((-1,), "max_norm is -1"),
        (("x",), "max_norm is 'x'"),
        ((1.0, 2, ["blocks.0.up.weight"]), "parameters holds a str, expected parameters"),
    ],
)
def test_arguments_that_mean_nothing(arguments, words):
    with identity(make()) as opt, pytest.raises(sw.InvalidArgument, match=words):
        opt.clip_grad_norm_(*arguments)


def test_two_bounds_at_once_are_refused():
    with (
        identity(make(), max_norm=1.0) as opt,
        pytest.raises(sw.InvalidArgument, match="max_norm=1 of the constructor clips"),
    ):
        opt.clip_grad_norm_(1.0)


def test_a_backward_after_clipping_is_refused():
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        opt.clip_grad_norm_(BOUND, parameters=model.blocks[0].up.weight)
        with pytest.raises(sw.InvalidArgument, match="between two backwards of one step"):
            loss_of(model, 1).backward()
        opt.zero_grad()
        loss_of(model, 1).backward()
        opt.step()


def test_a_closed_optimizer_clips_nothing():
    with identity(make()) as opt:
        pass
    with pytest.raises(sw.InvalidArgument, match="closed"):
        opt.clip_grad_norm_(1.0)


@pytest.mark.parametrize("order", [1, 3, math.inf])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_torchs_clipping_of_another_order_is_refused(order, foreach):
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        with pytest.raises(sw.Unavailable, match=r"norm of order .* use opt.clip_grad_norm_"):
            clip_grad_norm_(model.parameters(), BOUND, norm_type=order, foreach=foreach)
        clip_grad_norm_(model.parameters(), BOUND)
        opt.step()


@pytest.mark.parametrize(
    "norm",
    [
        lambda g: g.norm(1),
        lambda g: torch.norm(g, p=math.inf),
        lambda g: torch.linalg.norm(g.detach().float().flatten(), ord=1),
        lambda g: torch.linalg.vector_norm(g, ord=math.inf),
    ],
)
def test_norms_of_other_orders_are_refused_one_by_one(norm):
    model = make()
    with identity(model):
        loss_of(model, 0).backward()
        true = model.blocks[0].up.weight.grad.norm()
        assert type(true) is torch.Tensor
        with pytest.raises(sw.Unavailable, match="norm of order"):
            norm(model.blocks[0].up.weight.grad)


def one_by_one(model):
    return [[p] for p in model.parameters()]


@pytest.mark.parametrize("groups", [by_layer, one_by_one, by_shape, some, twice_over])
def test_torchs_clipping_of_groups_is_torchs(groups):
    """Clip each parameter by itself, as DINO does (facebookresearch/dino, utils.clip_gradients)."""
    ours, theirs = make(), make()
    with identity(ours, link=SLOW) as opt:
        mine = run(ours, opt, torch_of(groups, 2))
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    expected = run(theirs, reference, torch_of(groups, 2))
    agree(mine, expected)
    assert update_error(make(), ours, theirs) <= 1e-6


def test_clipping_by_norms_that_a_loop_computes_is_torchs():
    def by_hand(model, opt):
        total = sum(p.grad.detach().pow(2).sum() for p in model.parameters()) ** 0.5
        for p in model.parameters():
            p.grad.data.mul_(BOUND / total)
        return [
            float(total),
            float(torch.cat([p.grad.view(-1) for p in model.parameters()]).norm()),
        ]

    ours, theirs = make(), make()
    with identity(ours, link=SLOW) as opt:
        mine = run(ours, opt, by_hand)
    expected = run(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), by_hand)
    for one, other in zip(mine, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert update_error(make(), ours, theirs) <= 1e-5


def test_ordinary_gradients_may_be_edited_beside_clipping():
    """Masked, frozen or replaced one by one: none of it is clipping by layers."""

    def edited(model, opt):
        norm = [float(clip_grad_norm_(model.parameters(), BOUND))]
        model.enter.bias.grad.zero_()
        model.blocks[0].norm.weight.grad = None
        model.leave.weight.grad[2:] = 0
        model.leave.bias.grad.add_(torch.linspace(0, 1, 8))
        return norm

    ours, theirs = make(), make()
    with identity(ours, link=SLOW) as opt:
        mine = run(ours, opt, edited)
    expected = run(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), edited)
    agree(mine, expected)
    assert update_error(make(), ours, theirs) <= 1e-5


def test_the_default_trains_and_clips_when_no_parameter_is_ordinary():
    """No parameter has an ordinary gradient here."""

    class Bare(Stack):
        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Identity(), nn.Identity()
            self.blocks = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(3))

    def loss(model):
        return model(torch.ones(2, 256)).square().mean()

    ours, theirs = make(Bare), make(Bare)
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, link=SLOW) as opt:
        for _ in range(STEPS):
            for model, optimizer in ((ours, opt), (theirs, reference)):
                loss(model).backward()
                clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.step()
                optimizer.zero_grad()
    assert update_error(make(Bare), ours, theirs) <= 1e-5
