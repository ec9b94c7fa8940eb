"""Models whose weights are shared, frozen, left out, recomputed or read from outside."""

from __future__ import annotations

import pytest
import torch
from small_models import (
    Checkpointed,
    CheckpointedReentrant,
    Stack,
    Tied,
    distance,
    loss_of,
    make,
    weights_of,
)
from torch import nn
from torch.nn import functional
from twins import LR, close_to_native, identity, train


@pytest.mark.parametrize("kind", [Checkpointed, CheckpointedReentrant])
@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_activation_checkpointing_of_both_kinds(kind, accumulate):
    assert close_to_native(lambda: make(kind), accumulate=accumulate) <= 1e-5


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_tied_weights_count_once(reentrant):
    assert close_to_native(lambda: make(Tied, reentrant=reentrant)) <= 1e-5


def test_frozen_layers_stay_and_the_rest_trains():
    def frozen():
        model = make()
        for p in model.blocks[0].parameters():
            p.requires_grad_(False)
        return model

    assert close_to_native(frozen) <= 1e-5
    model = frozen()
    before = weights_of(model)
    with identity(model) as opt:
        train(model, opt, 3)
    assert torch.equal(before["blocks.0.up.weight"], model.blocks[0].up.weight)


class Routed(Stack):
    """Odd steps leave the second block out, so its weights get no gradient."""

    step = 0

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks[: 1 + (self.step + 1) % 2]:
            x = block(x)
        self.step += 1
        return self.leave(x)


def test_a_weight_without_gradient_in_a_step_is_left_alone():
    assert close_to_native(lambda: make(Routed)) <= 1e-5


def test_accumulation_keeps_everything_when_the_sentinel_weight_comes_first_in_backward():
    class SmallestLast(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(16, 512)
            self.body = nn.Linear(512, 512)
            self.leave = nn.Linear(512, 128)

        def forward(self, x):
            return self.leave(torch.tanh(self.body(self.enter(x))))[:, :8]

    ours, theirs = make(SmallestLast), make(SmallestLast)
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours) as opt:
        for model, optimizer in ((ours, opt), (theirs, reference)):
            for step in range(4):
                for micro in range(3):
                    loss_of(model, 3 * step + micro).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert distance(ours, theirs) <= 1e-5


def test_embeddings_and_head_are_trained_by_default_and_frozen_on_request():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(300, 256)
            self.body = nn.Linear(256, 256)
            self.lm_head = nn.Linear(256, 300, bias=False)
            self.lm_head.weight = self.embed.weight

        def forward(self, tokens):
            return self.lm_head(self.body(self.embed(tokens)))

    def loss(model, step):
        tokens = torch.randint(0, 300, (4, 9), generator=torch.Generator().manual_seed(step))
        return functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    model = make(Language)
    before = model.embed.weight.detach().clone()
    with identity(model, embeddings="frozen") as opt:
        assert [name for name, _ in opt.frozen] == ["embed.weight"]
        train(model, opt, 2, loss=loss)
    assert torch.equal(model.embed.weight, before)
    assert model.embed.weight.requires_grad
    assert close_to_native(lambda: make(Language), loss=loss) <= 1e-5
    assert close_to_native(lambda: make(Language), loss=loss, embeddings="identity") <= 1e-5
