"""Embeddings and head: the residual alone trains them, without a core, unless asked otherwise."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_llama import EMBEDDINGS, small_llama
from torch.nn import functional

LR, DECAY, BETA2, EPS = 1e-2, 0.1, 0.999, 1e-8
HEAD = "lm_head.weight"


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 32, (2, 9), generator=generator)  # Half of the vocabulary of 64.
    logits = model(input_ids=tokens[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def factored(weight, gradients):
    """Train a weight without a core by the factored residual, in double precision."""
    weight, rows, columns = weight.double(), 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        gradient = gradient.double()
        rows = BETA2 * rows + (1 - BETA2) * gradient.square().mean(1)
        columns = BETA2 * columns + (1 - BETA2) * gradient.square().mean(0)
        second = rows[:, None] * columns[None, :] / rows.mean() / (1 - BETA2**step)
        update = gradient / (second.sqrt() + EPS)
        update /= max(1.0, update.square().mean().sqrt().item())
        weight = weight * (1 - LR * DECAY) - LR * update
    return weight


def subspace(model, **options):
    return sw.SubspaceAdamW(model, lr=LR, weight_decay=DECAY, **options)


def trained(tied=True, steps=3, **options):
    """A trained model, and the gradients that its embeddings and head had in each step."""
    model = small_llama(tie_word_embeddings=tied)
    names = [EMBEDDINGS] if tied else [EMBEDDINGS, HEAD]
    gradients = {name: [] for name in names}
    with subspace(model, **options) as opt:
        for step in range(steps):
            twin = small_llama(tie_word_embeddings=tied)
            opt.synchronize()
            twin.load_state_dict(model.state_dict())
            loss_of(twin, step).backward()
            for name in names:
                gradients[name].append(twin.get_parameter(name).grad)
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()
    return model, gradients


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("codec", ["auto", "none", "svd", "block_random", "sparse_random"])
def test_the_residual_alone_trains_them_whatever_the_codec(codec, tied):
    start = small_llama(tie_word_embeddings=tied)
    model, gradients = trained(tied, codec=codec)
    for name, of_steps in gradients.items():
        before, after = (m.get_parameter(name).detach() for m in (start, model))
        expected = factored(before, of_steps)
        moved = (expected - before.double()).abs().max()
        assert (after - expected).abs().max() <= 1e-4 * moved


def test_a_row_that_no_token_reads_moves_by_its_decay_alone():
    model, _ = trained(tied=False, steps=5)
    before = small_llama(tie_word_embeddings=False).get_parameter(EMBEDDINGS).detach()
    shrunk = before[32:] * (1 - LR * DECAY) ** 5
    assert torch.allclose(model.get_parameter(EMBEDDINGS)[32:], shrunk, rtol=1e-5, atol=0)


def test_their_state_is_one_number_for_each_row_and_column():
    model = small_llama()
    with subspace(model) as opt:
        (of_embedding,) = [w for w in opt.describe() if w["name"] == EMBEDDINGS]
    rows, columns = model.get_parameter(EMBEDDINGS).shape
    assert (of_embedding["codec"], of_embedding["residual"]) == ("none", "factored")
    assert of_embedding["d2h_bytes"] == of_embedding["h2d_bytes"] == 0
    assert of_embedding["device_bytes"] <= 4 * 4 * (rows + columns) + 1024
    assert of_embedding["why"] == "an embedding or the head"


@pytest.mark.parametrize("way", ["frozen", "identity"])
def test_another_way_is_taken_where_it_is_said(way):
    start, (model, _) = small_llama().get_parameter(EMBEDDINGS), trained(embeddings=way)
    same = torch.equal(model.get_parameter(EMBEDDINGS), start)
    assert same == (way == "frozen")
    with pytest.raises(sw.InvalidArgument, match="embeddings"):
        subspace(small_llama(), embeddings="whole")


def test_training_goes_on_from_a_state_bit_for_bit():
    whole, _ = trained(steps=4)
    model = small_llama()
    with subspace(model) as opt:
        for step in range(2):
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()
        state, values = opt.state_dict(), model.state_dict()
    resumed = small_llama()
    resumed.load_state_dict(values)
    with subspace(resumed) as opt:
        opt.load_state_dict(state)
        for step in range(2, 4):
            loss_of(resumed, step).backward()
            opt.step()
            opt.zero_grad()
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name
