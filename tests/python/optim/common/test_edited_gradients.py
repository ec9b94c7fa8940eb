"""Edits of `.grad` between backward and step: same result as torch's AdamW, or a clear error."""

from __future__ import annotations

import copy

import pytest
import sluiceway as sw
import torch
from small_models import batch, loss_of, make, update_error
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from twins import LR, identity
from updates import SLOW

STEPS = 8
EPS = 1e-6  # Adam divides by less noise where gradients are small.
REFUSED = "the values of a compressed gradient were to be read, edited or combined"


def error_of(drive, **arguments):
    """Drive twins with ours and torch's; return the error of the update."""
    ours, theirs = make(), make()
    with identity(ours, link=SLOW, eps=EPS, **arguments) as opt:
        drive(ours, opt)
    drive(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, eps=EPS, foreach=False))
    return update_error(make(), ours, theirs)


def with_gradients(model):
    return [p for p in model.parameters() if p.grad is not None]


def between(act, at=range(STEPS), clear=lambda model, opt: opt.zero_grad()):
    """Steps, in some of which `act` comes between backward and step."""

    def drive(model, opt):
        for step in range(STEPS):
            loss_of(model, step).backward()
            if step in at:
                act(model, opt)
            opt.step()
            clear(model, opt)

    return drive


def refuses(drive, words):
    model = make()
    with identity(model, link=SLOW) as opt:
        with pytest.raises(sw.Error, match=words):
            drive(model, opt)
        opt.zero_grad()
        loss_of(model, 0).backward()  # Once the gradients are gone it goes on.
        opt.step()


# ---- What scales everything, zero included, is AdamW's ----


def each(change):
    return lambda model, opt: [change(p.grad) for p in with_gradients(model)]


def replaced(model, opt):
    for p in with_gradients(model):
        p.grad = p.grad * 0.5


def set_aside(model, opt):
    """Gradients are out of the way while the model is evaluated."""
    aside = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    with torch.no_grad():
        loss_of(model, 77)
    for p, gradient in zip(model.parameters(), aside, strict=True):
        p.grad = gradient


@pytest.mark.parametrize(
    ("act", "at"),
    [
        (each(lambda g: g.neg_()), range(STEPS)),
        (each(lambda g: g.mul_(0)), (3, 4)),
        (each(lambda g: g.zero_()), (3, 4)),
        (lambda model, opt: opt.zero_grad(set_to_none=False), (3, 4)),
        (lambda model, opt: model.zero_grad(set_to_none=False), (3, 4)),
        (lambda model, opt: model.zero_grad(), (3, 4)),
        (replaced, range(STEPS)),
        (set_aside, range(STEPS)),
    ],
    ids=[
        "negated",
        "times-0",
        "zero_",
        "opt-zeros",
        "model-zeros",
        "none",
        "replaced",
        "set-aside",
    ],
)
def test_scaled_zeroed_removed_and_set_aside_as_a_whole(act, at):
    assert error_of(between(act, at)) <= 1e-5


@pytest.mark.parametrize("clear", ["opt", "model"])
def test_zeros_in_place_between_steps(clear):
    def zeros(model, opt):
        (model if clear == "model" else opt).zero_grad(set_to_none=False)

    assert error_of(between(lambda model, opt: None, clear=zeros)) <= 1e-5


def test_zeros_train_no_residual():
    zeroed, unmoved = make(), make()
    for model in (zeroed, unmoved):
        with sw.SubspaceAdamW(model, lr=LR, codec="block_random", weight_decay=0.0) as opt:
            if model is zeroed:
                loss_of(model, 0).backward()
                opt.zero_grad(set_to_none=False)
                opt.step()
            opt.synchronize()
    assert all(map(torch.equal, zeroed.state_dict().values(), unmoved.state_dict().values()))


# ---- Edits that compressed gradients cannot follow ----


def masked(change):
    def act(model, opt):
        for p in with_gradients(model):
            if p.shape == (256, 256):
                change(p.grad)

    return act


def some_dropped(gradient):
    keep = torch.rand(gradient.shape, generator=torch.Generator().manual_seed(1)) > 0.1
    gradient.mul_(keep.float())


@pytest.mark.parametrize(
    "act",
    [
        masked(lambda g: g[0].zero_()),
        masked(lambda g: g[-1].zero_()),
        masked(lambda g: g[:, 0].zero_()),
        masked(lambda g: g[:, 128:].zero_()),
        masked(some_dropped),
        each(lambda g: g.sub_(g.mean())),
        each(lambda g: g.add_(1e-6)),
        each(lambda g: g.clamp_(-0.02, 0.02)),
        each(lambda g: g.sign_()),
    ],
    ids=["row", "last-row", "column", "half", "dropout", "centralised", "noise", "clamp", "sign"],
)
def test_edited_element_by_element(act):
    refuses(between(act), REFUSED)


@pytest.mark.parametrize(
    "look",
    [
        lambda g: g.abs().max(),
        lambda g: g.mean(),
        lambda g: g[0],
        lambda g: torch.sum(g),
        lambda g: g.norm(dim=1),
        lambda g: g.pow(3),
        lambda g: torch.mul(g, 0.5, out=g),
    ],
)
def test_values_are_not_there_to_be_read(look):
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        for p in (w.parameter for w in opt.weights):
            with pytest.raises(sw.Unavailable, match="a compressed gradient"):
                look(p.grad)
        opt.step()


def test_products_of_two_gradients_are_refused():
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        first, second = (w.parameter.grad for w in opt.weights[:2])
        assert float((first * first).sum()) == pytest.approx(float(first.norm()) ** 2)
        with pytest.raises(sw.Unavailable, match=REFUSED):
            first * second
        opt.step()


def test_a_factor_with_a_graph_scales_one_gradient_and_gives_no_other_a_graph():
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        first, other = (weight.parameter for weight in opt.weights[:2])
        before = other.grad.norm().item()
        first.grad.mul_(torch.tensor(0.5, requires_grad=True))
        assert not other.grad.norm().requires_grad
        assert other.grad.norm().item() == before
        opt.zero_grad()


def test_a_storage_that_was_emptied_is_new_in_the_next_backward():
    model = make()
    with identity(model) as opt:
        for _ in range(2):
            loss_of(model, 0).backward()
            weight = opt.weights[0].parameter
            assert weight.grad.clone().norm() > 0
            weight.grad.untyped_storage().resize_(0)
            opt.step()
            opt.zero_grad()


@pytest.mark.parametrize("after_step", [False, True])
def test_a_plain_tensor_in_the_place_of_a_norm_is_refused_in_the_next_backward(after_step):
    def drive(model, opt):
        loss_of(model, 0).backward()
        if after_step:
            opt.step()
        weight = opt.weights[0].parameter
        weight.grad = torch.zeros(weight.shape)
        loss_of(model, 0).backward()

    refuses(drive, "has a .grad that no backward")


def test_gradients_that_are_not_finite_are_not_repaired():
    def drive(model, opt):
        (loss_of(model, 0) + model.blocks[0].up.weight[0, 0] * float("nan")).backward()
        for p in with_gradients(model):
            torch.nan_to_num_(p.grad, 0, 0, 0)
        opt.step()

    refuses(drive, "nan_to_num_: " + REFUSED)


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_a_step_that_is_not_finite_may_be_zeroed(scale):
    model, plain = make(), make()
    with identity(model) as opt, identity(plain) as other:
        (loss_of(model, 0) * scale).backward()
        model.zero_grad(set_to_none=False)
        for trained, optimizer in ((model, opt), (plain, other)):
            loss_of(trained, 1).backward()
            optimizer.step()
    assert update_error(make(), model, plain) == 0


# ---- What needs the gradient itself ----


def sharpened(model, opt):
    norm = torch.stack([p.grad.norm() for p in with_gradients(model)]).norm()
    for p in with_gradients(model):
        p.data.add_(p.grad * (0.05 / norm))


def sharpened_at_once(model, opt):
    found = with_gradients(model)
    torch._foreach_add_([p.data for p in found], torch._foreach_mul([p.grad for p in found], 0.1))


@torch.no_grad()
def stepped_by_hand(model, opt):
    for p in with_gradients(model):
        p -= 0.1 * p.grad


def decayed_by_hand(model, opt):
    for p in with_gradients(model):
        p.grad.add_(p.detach(), alpha=0.01)


@torch.no_grad()
def importance(model, opt):
    return sum((p * p.grad).abs().sum() for p in with_gradients(model))


@pytest.mark.parametrize(
    "act", [sharpened, sharpened_at_once, stepped_by_hand, decayed_by_hand, importance]
)
def test_a_weight_and_its_gradient(act):
    refuses(between(act), REFUSED)


# ---- Gradients of another step ----


def kept(model):
    return [p.grad for p in model.parameters()]


def test_a_probe_between_backward_and_step():
    def drive(model, opt):
        loss_of(model, 0).backward()
        saved = kept(model)
        for p in model.parameters():
            p.grad = None
        loss_of(model, 1).backward()
        for p, gradient in zip(model.parameters(), saved, strict=True):
            p.grad = gradient
        opt.step()

    refuses(drive, r"has a \.grad that no backward\(\) gave it|put no earlier \.grad back")


def test_clones_of_another_step_are_not_added():
    def drive(model, opt):
        loss_of(model, 0).backward()
        saved = [g if g is None else g.clone() for g in kept(model)]
        opt.zero_grad()
        loss_of(model, 1).backward()
        for p, gradient in zip(model.parameters(), saved, strict=True):
            if gradient is not None:
                p.grad = p.grad + gradient
        opt.step()

    refuses(drive, "add: " + REFUSED)


@pytest.mark.parametrize("then", ["step", "backward"])
def test_what_comes_back_after_its_gradients_were_dropped(then):
    def drive(model, opt):
        loss_of(model, 0).backward()
        saved = kept(model)
        opt.zero_grad()
        for p, gradient in zip(model.parameters(), saved, strict=True):
            p.grad = gradient
        if then == "backward":
            loss_of(model, 1).backward()
        opt.step()

    refuses(drive, r"put back after the compressed gradients .* dropped or used")


# ---- Parts of the model ----


def no_gradients(module):
    for p in module.parameters():
        p.grad = None


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("remove", [no_gradients, nn.Module.zero_grad])
@pytest.mark.parametrize("then", ["step", "forward", "backward"])
def test_gradients_of_a_part_are_removed(block, remove, then):
    """Cancel gradients like DINO (facebookresearch/dino, utils.cancel_gradients_last_layer)."""

    def drive(model, opt):
        loss_of(model, 0).backward()
        later = loss_of(model, 50)
        remove(model.blocks[block])
        if then == "step":
            opt.step()
        elif then == "forward":
            loss_of(model, 1)
        else:
            later.backward()

    refuses(drive, rf"the gradient of blocks\.{block}\..* was removed, that of blocks.* was not")


@pytest.mark.parametrize("block", [0, 1])
def test_gradients_of_a_part_are_zeroed(block):
    act = lambda model, opt: model.blocks[block].zero_grad(set_to_none=False)  # noqa: E731
    assert error_of(between(act)) <= 1e-5


@pytest.mark.parametrize("block", [0, 1])
def test_a_part_that_is_zeroed_leaves_no_residual_to_train(block):
    model = make()
    with sw.SubspaceAdamW(model, lr=LR, codec="block_random", residual="factored") as opt:
        loss_of(model, 0).backward()
        model.blocks[block].zero_grad(set_to_none=False)
        with pytest.raises(sw.InvalidArgument, match="was zeroed and others were not"):
            opt.step()
        opt.zero_grad()
        loss_of(model, 0).backward()
        opt.step()


@pytest.mark.parametrize("block", [0, 1])
def test_gradients_of_a_part_are_clipped_and_scaled(block):
    def act(model, opt):
        clip_grad_norm_(model.blocks[block].parameters(), 1e-3)
        for p in model.blocks[1 - block].up.parameters():
            p.grad.mul_(3)

    assert error_of(between(act)) <= 1e-5


def test_ordinary_gradients_alone_may_be_scaled_and_removed():
    def act(model, opt):
        for p in model.leave.parameters():
            p.grad.mul_(0.1)
        model.blocks[1].norm.bias.grad.mul_(3)
        model.enter.weight.grad = None

    assert error_of(between(act)) <= 1e-5


def test_a_part_that_is_skipped_after_zeros_in_place():
    def without(model, step, block):
        x, y = batch(step)
        x = model.enter(x)
        for number, each_block in enumerate(model.blocks):
            x = x if number == block else each_block(x)
        return functional.mse_loss(model.leave(x), y)

    def drive(model, opt, clear, set_to_none):
        for step in range(STEPS):
            without(model, step, step % 3 if step > 1 else None).backward()
            opt.step()
            clear(model, opt).zero_grad(set_to_none=set_to_none)

    for clear in (lambda model, opt: opt, lambda model, opt: model):
        refuses(
            lambda model, opt, clear=clear: drive(model, opt, clear, False),
            r"blocks\.0\.up\.weight has no gradient in this step, .*set_to_none=True",
        )
        assert error_of(lambda model, opt, clear=clear: drive(model, opt, clear, True)) <= 1e-5


# ---- Graphs, hooks, buffers and sizes ----


def graph(model, opt, penalty):
    for step in range(STEPS):
        loss_of(model, step).backward(create_graph=True)
        squares = sum(p.grad.square().sum() for p in with_gradients(model))
        if penalty:
            opt.zero_grad()
            (loss_of(model, step) + squares).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        opt.zero_grad()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_penalty_on_grad_is_refused_and_a_graph_alone_is_not():
    refuses(lambda model, opt: graph(model, opt, True), r"a loss was made of \.grad after")
    assert error_of(lambda model, opt: graph(model, opt, False)) <= 1e-5


def test_hooks_that_would_find_grad_empty():
    def drive(model, opt):
        hook = model.blocks[1].up.weight.register_post_accumulate_grad_hook(lambda p: None)
        loss_of(model, 0).backward()
        try:
            opt.step()
        finally:
            hook.remove()

    refuses(drive, r"blocks\.1\.up\.weight got a post-accumulate hook after the optimizer was made")


def test_a_flat_buffer_of_gradients():
    def drive(model, opt):
        flat = torch.zeros(sum(p.numel() for p in model.parameters()))
        parts = flat.split([p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts, strict=True):
            p.grad = part.view_as(p)
        loss_of(model, 0).backward()

    refuses(drive, r"\.grad of blocks\.0\.up\.weight is a part of a larger tensor")


def test_a_weight_of_one_element_has_a_norm_too():
    def model():
        return nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1), nn.Linear(1, 4))

    one = make(model)
    with identity(one, target=["1.weight"]) as opt:
        one(torch.ones(2, 4)).sum().backward()
        assert float(clip_grad_norm_(one[1].weight, 1e-3)) > 0
        opt.step()


def test_gradients_are_copied_with_the_rest():
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        gradient = opt.weights[0].parameter.grad
        assert copy.deepcopy(gradient).norm() == gradient.norm() > 0
        opt.step()
