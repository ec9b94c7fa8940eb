"""A model that is converted, moved or given other parameters in the middle: right, or one error."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import batch, make, update_error
from torch import nn
from torch.nn import functional
from twins import LR, identity

SLOW = sw.Link(d2h_gbps=0.02, h2d_gbps=0.02)
PLACES = ("forward", "backward", "step")


def train(model, opt, steps, act=lambda model: None, where="forward", at=2):
    """Train; in step `at` change the model before its forward, backward or step."""
    for step in range(steps):
        for place in PLACES:
            if step == at and place == where:
                act(model)
            if place == "forward":
                x, y = batch(step)
                kind = model.enter.weight
                x, y = x.to(kind.device, kind.dtype), y.to(kind.device, kind.dtype)
                loss = functional.mse_loss(model(x), y)
            elif place == "backward":
                loss.backward()
            else:
                opt.step()
                opt.zero_grad()


def one_layer(model):
    model.blocks[1].norm.half()


def assign(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


CHANGES = {
    "bfloat16": (
        lambda model: model.bfloat16(),
        "blocks.0.up.weight is torch.bfloat16 on cpu, expected",
    ),
    "half": (lambda model: model.half(), "is torch.float16 on cpu, expected"),
    "double": (lambda model: model.double(), "is torch.float64 on cpu, expected"),
    "to": (lambda model: model.to(torch.bfloat16), "is torch.bfloat16 on cpu, expected"),
    "device": (lambda model: model.to("meta"), "is another parameter now than when"),
    "one layer": (
        one_layer,
        "blocks.1.norm.weight is torch.float16 on cpu, expected torch",
    ),
    "assign": (assign, "is another parameter now than when"),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("act", "words"), CHANGES.values(), ids=CHANGES)
def test_a_change_in_the_middle_is_named(act, words, where):
    model = make()
    with identity(model, link=SLOW) as opt, pytest.raises(sw.InvalidArgument, match=words):
        train(model, opt, 4, act, where)


@pytest.mark.parametrize("where", ["forward", "step"])  # torch refuses it while a graph lives.
def test_a_weight_that_is_swapped_for_another_tensor_is_named(where):
    def load(model):
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.load_state_dict({name: w.clone() for name, w in model.state_dict().items()})
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    model = make()
    words = "blocks.0.up.weight was swapped for another tensor"
    with identity(model, link=SLOW) as opt, pytest.raises(sw.InvalidArgument, match=words):
        train(model, opt, 4, load, where)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    "act",
    [
        lambda model: model.float(),
        lambda model: model.to("cpu"),
        lambda model: model.to(memory_format=torch.channels_last),
    ],
    ids=["float", "cpu", "memory_format"],
)
def test_a_conversion_that_changes_nothing_trains_on(act, where):
    ours, theirs = make(), make()
    with identity(ours, link=SLOW) as opt:
        train(ours, opt, 8, act, where)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), 8, act, where)
    assert update_error(make(), ours, theirs) <= 1e-5


def swap_storage(model):
    for p in model.parameters():
        p.data = p.data.clone()


@pytest.mark.parametrize("where", PLACES)
def test_storage_that_is_replaced_trains_on(where):
    def act(model):
        swap_storage(model)

    ours, theirs = make(), make()
    with identity(ours, link=SLOW) as opt:
        train(ours, opt, 8, act, where)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), ours, theirs) <= 1e-5


def test_a_conversion_to_the_same_16_bits_after_backward_rounds_no_norm():
    converted, plain = make().bfloat16(), make().bfloat16()
    for model in (converted, plain):
        act = (lambda m: m.bfloat16()) if model is converted else (lambda m: None)
        with identity(model, weight_update="residual") as opt:
            train(model, opt, 3, act, "step")
    assert update_error(make().bfloat16(), converted, plain) == 0


def test_a_converted_model_may_be_evaluated_when_training_is_over():
    model = make()
    with identity(model, link=SLOW) as opt:
        train(model, opt, 2)
        opt.synchronize()
        expected = model.enter.weight.detach().bfloat16()
        model.eval().bfloat16()
        with torch.no_grad():
            assert model(batch(0)[0].bfloat16()).isfinite().all()
        assert torch.equal(model.enter.weight, expected)


def test_functional_calls_with_other_parameters_are_no_replacement():
    ours, theirs = make(), make()

    def look(model):
        others = {name: p.detach() * 2 for name, p in model.named_parameters()}
        torch.func.functional_call(model, others, (batch(3)[0],))

    with identity(ours, link=SLOW) as opt:
        train(ours, opt, 8, look, "step")
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), ours, theirs) <= 1e-5


# ---- What is no model ----


@pytest.mark.parametrize(
    "given",
    [
        lambda model: model.parameters(),
        lambda model: list(model.parameters()),
        lambda model: [{"params": model.parameters(), "lr": 1e-3}],
        lambda model: model.named_parameters(),
        lambda model: None,
    ],
    ids=["generator", "list", "groups", "named", "none"],
)
def test_what_torchs_optimizers_take_is_answered_with_what_to_write(given):
    with pytest.raises(
        sw.InvalidArgument,
        match=r"SubspaceAdamW: model is a .*, expected the .*write SubspaceAdamW\(model, lr=",
    ):
        sw.SubspaceAdamW(given(nn.Linear(256, 256)), codec="block_random", lr=LR)
