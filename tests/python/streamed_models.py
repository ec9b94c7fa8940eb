"""A model that OffloadAdamW streams, and runs of it beside the same with resident weights."""

from __future__ import annotations

from functools import partial

import torch
from offload_models import offload
from sluiceway.optim.common import torch_private
from small_llama import tokens
from small_models import Stack, batch, make, weights_of
from torch.nn import functional

STEPS = 4
streamed = partial(offload, weights="streamed")
stack = partial(make, partial(Stack, blocks=3, width=64))


def loss_of(model, step):
    x, y = batch(step)
    return functional.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)


def same_bits(left, right):
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def language_loss(model, step):
    return model(input_ids=tokens(step), labels=tokens(step)).loss


def steps_of(model, opt, steps=STEPS, first=0, micro=1, clip=None, loss_at=loss_of):
    """Return the losses of a run."""
    torch.manual_seed(11)
    losses = []
    for step in range(first, first + steps):
        for part in range(micro):
            loss = loss_at(model, micro * step + part) / micro
            loss.backward()
            losses.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        opt.zero_grad()
    return losses


def ended(model, made, drive=steps_of):
    """Return what a run of a new model gives, and its weights afterwards."""
    with made(model) as opt:
        result = drive(model, opt)
        opt.synchronize()
        weights = weights_of(model)
    assert same_bits(weights_of(model), weights)  # close() leaves them in the model.
    return result, weights


def assert_same(model_of, drive=steps_of, **arguments):
    resident, expected = ended(model_of(), partial(offload, **arguments), drive)
    found, weights = ended(model_of(), partial(streamed, **arguments), drive)
    assert found == resident
    assert same_bits(weights, expected)


def held_by(p):
    with torch_private.asking_no_class():
        return p.untyped_storage().nbytes()
