"""Averages and copies of a model that are made while its optimizer is open."""

from __future__ import annotations

import copy
import io

import pytest
import sluiceway as sw
import torch
from agreement import (
    LINK,
    STEPS,
    check_row,
    disagreement,
    error_of_update,
    language_loss,
    seen_weights,
)
from small_llama import small_llama
from small_models import loss_of, make, same_bits
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from twins import LR, identity, train


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.5)], ids=["swa", "ema"])
def test_averaged_model(record_property, average):
    def drive(model, optimizer):
        kept = AveragedModel(model, multi_avg_fn=average)
        averages.append(kept.module)
        for step in range(STEPS):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.update_parameters(model)

    averages = []
    start = seen_weights(make())
    error = disagreement(make, drive)
    of_average = error_of_update(start, *averages)
    check_row(record_property, "`AveragedModel` (SWA, EMA)", max(error, of_average))


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded])
def test_copy_in_the_middle_holds_what_was_stepped_and_trains_alone(copied):
    model, expected = make(), make()
    with identity(model, link=LINK) as opt, identity(expected) as other:
        train(model, opt, 2)
        twin = copied(model)
        train(expected, other, 2)
        other.synchronize()
        assert same_bits(twin, expected)
        train(model, opt, 2, first=2)  # The copy takes nothing from it.
        assert same_bits(twin, expected)
        train(expected, other, 2, first=2)
    assert same_bits(model, expected)
    for step in (2, 3):
        loss_of(twin, step).backward()
    assert all(p.grad is not None for p in twin.parameters())
    twin.state_dict()


def test_a_copied_model_trains_without_the_optimizer_of_the_original():
    alone, copied, plain = small_llama(), small_llama(), small_llama()
    with sw.SubspaceAdamW(alone, codec="block_random", lr=LR) as opt:
        train(alone, opt, 4, loss=language_loss)
    with sw.SubspaceAdamW(copied, codec="block_random", lr=LR, accumulate=1) as opt:
        train(copied, opt, 2, loss=language_loss)
        opt.synchronize()
        twin = copy.deepcopy(copied)
        plain.load_state_dict(copied.state_dict())
        language_loss(copied, 2).backward()
        for index in (5, 6):  # In the middle of a step of the original.
            language_loss(twin, index).backward()
            language_loss(plain, index).backward()
        opt.step()
        opt.zero_grad()
        train(copied, opt, 1, first=3, loss=language_loss)
    assert same_bits(copied, alone)
    for (name, p), (_, expected) in zip(
        twin.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert (p.grad is None) == (expected.grad is None), name
        assert p.grad is None or torch.equal(p.grad, expected.grad), name
    assert twin.model.layers[0].mlp.up_proj.weight.grad is not None
    assert twin.state_dict().keys() == plain.state_dict().keys()  # Of an optimizer that is closed.
