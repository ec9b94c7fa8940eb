"""States, reads, foreign writes and failures of weights that steps are written into."""

from __future__ import annotations

import copy

import pytest
import sluiceway
import torch
from sluiceway.optim.zo.masters import Masters
from torch import nn
from zo_models import OPTIONS, decoder, of_dtype, same, zo_ids, zo_loss, zo_train


def writing_back(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, mode="write_back", tier="host", **options)


def of_16_bits() -> nn.Module:
    return decoder().to(torch.bfloat16)


def hooks_of(model: nn.Module) -> int:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_state_dict_hooks")
    kinds += ("_load_state_dict_pre_hooks",)
    return sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)


# ---- An optimizer that cannot be made ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", ["held", "take", "has_image"])
def test_whatever_fails_leaves_the_model_as_it_was(monkeypatch, dtype, where: str) -> None:
    model, untouched = (of_dtype(decoder(), dtype) for _ in range(2))
    calls, real = [], getattr(Masters, where)

    def failing(self, *args):
        calls.append(args)
        if where != "has_image":
            real(self, *args)
        elif len(calls) < 5:  # In the middle of `take`.
            return real(self, *args)
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(Masters, where, failing)
        with pytest.raises(RuntimeError, match="planted"):
            writing_back(model)
    assert hooks_of(model) == hooks_of(untouched)
    assert same(model.state_dict(), untouched)
    opt = writing_back(model, **OPTIONS)  # And another one may have it.
    zo_train(opt, model, range(1))


# ---- States ----


def test_a_state_of_another_step_needs_the_weights_of_that_step() -> None:
    model, whole = decoder(), decoder()
    in_one_go = writing_back(whole, **OPTIONS)
    expected = zo_train(in_one_go, whole, range(5))
    opt = writing_back(model, **OPTIONS)
    zo_train(opt, model, range(2))
    state = copy.deepcopy((model.state_dict(), opt.state_dict()))
    zo_train(opt, model, range(2, 5))
    with pytest.raises(
        sluiceway.InvalidArgument, match=r"has step 2, but embed\.weight has step 5"
    ):
        opt.load_state_dict(state[1])
    assert opt.committed_steps == 5
    assert same(model.state_dict(), whole)
    opt.load_state_dict(opt.state_dict())  # Of the same step.
    assert zo_train(opt, model, range(5, 6)) == zo_train(in_one_go, whole, range(5, 6))
    with torch._C.DisableTorchFunctionSubclass():  # Without waiting for what is under way.
        for name, p in model.named_parameters():
            p.data.copy_(state[0][name])
            torch.autograd.graph.increment_version(p)
    with pytest.raises(sluiceway.InvalidArgument, match="was changed while steps were written"):
        opt.load_state_dict(state[1])
    model.load_state_dict(state[0])
    opt.load_state_dict(state[1])
    assert zo_train(opt, model, range(2, 5)) == expected[2:]


def test_masters_that_went_on_since_they_were_saved_are_refused() -> None:
    model, whole = of_16_bits(), of_16_bits()
    in_one_go = writing_back(whole, **OPTIONS)
    expected = zo_train(in_one_go, whole, range(5))
    opt = writing_back(model, **OPTIONS)
    zo_train(opt, model, range(2))
    state = opt.state_dict()
    kept = copy.deepcopy(state)
    zo_train(opt, model, range(2, 5))
    with pytest.raises(sluiceway.InvalidArgument, match="is the optimizer's own tensor"):
        opt.load_state_dict(state)
    assert same(model.state_dict(), whole)
    opt.load_state_dict(kept)
    assert zo_train(opt, model, range(2, 5)) == expected[2:]


def test_weights_of_16_bits_are_not_loaded_while_they_have_no_memory() -> None:
    model, other = (of_dtype(decoder(), torch.bfloat16) for _ in range(2))
    weights = {name: p + 1 for name, p in other.state_dict().items()}
    opt = writing_back(model, **OPTIONS)
    with pytest.raises(sluiceway.InvalidArgument, match=r"embed\.weight has no memory"):
        model.load_state_dict(weights)
    assert same(model.state_dict(), other)  # What is float32, too.
    opt.close()
    model.load_state_dict(weights)
    assert torch.equal(model.embed.weight, weights["embed.weight"])


# ---- Who looks, and when ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nobody_sees_weights_within_a_step(dtype: torch.dtype) -> None:
    model, untouched = (of_dtype(decoder(), dtype) for _ in range(2))
    opt = writing_back(model, **OPTIONS)
    state = opt.state_dict()
    looks = [
        model.state_dict,
        opt.state_dict,
        lambda: opt.theta(model.embed.weight),
        opt.close,
        lambda: opt.load_state_dict(state),
    ]
    refused = []

    def looking() -> torch.Tensor:
        loss = zo_loss(model, zo_ids(0))
        for look in looks:
            try:
                look()
            except sluiceway.InvalidArgument as error:
                refused.append(str(error))
        return loss

    zo_train(opt, model, range(1))
    found = opt.step(looking)
    other = writing_back(untouched, **OPTIONS)
    zo_train(other, untouched, range(1))
    assert found == other.step(lambda: zo_loss(untouched, zo_ids(0)))
    assert len(refused) == 2 * opt.options.directions * len(looks)
    assert all("a step is under way" in text for text in refused)
    other.close()
    assert same(model.state_dict(), untouched)


def test_closing_without_theta_leaves_weights_of_one_step() -> None:
    model, whole = decoder(), decoder()
    for of, theta in ((model, False), (whole, True)):
        opt = writing_back(of, **OPTIONS)
        zo_train(opt, of, range(3))
        opt.close(theta=theta)
    assert same(model.state_dict(), whole)
