"""Parameters in groups are trained and others left alone; without groups some are frozen."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_llama import EMBEDDINGS, small_llama, train
from small_models import update_error
from twins import LR, identity

SLOW = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)


def native(params, lr=LR):
    return torch.optim.AdamW(params, lr=lr, foreach=False)


def without_embeddings(model):
    return [p for name, p in model.named_parameters() if name != EMBEDDINGS]


def decayed(model):
    """The idiom of most training scripts: everything, in two groups."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]


def test_another_optimizer_trains_the_embeddings():
    ours, theirs = small_llama(), small_llama()
    rest = [{"params": without_embeddings(ours)}]
    with identity(ours, param_groups=rest, link=SLOW) as opt:
        assert opt.frozen == []
        assert ours.get_parameter(EMBEDDINGS).requires_grad
        train(ours, [opt, native([ours.get_parameter(EMBEDDINGS)], 1e-2)])
    both = [native(without_embeddings(theirs)), native([theirs.get_parameter(EMBEDDINGS)], 1e-2)]
    train(theirs, both)
    assert update_error(small_llama(), ours, theirs) <= 1e-5


@pytest.mark.parametrize("more", [{}, {"embeddings": "identity"}, {"embeddings": "trained"}])
def test_embeddings_that_stand_in_a_group_are_trained(more):
    ours, theirs = small_llama(), small_llama()
    with identity(ours, param_groups=decayed(ours), link=SLOW, **more) as opt:
        assert EMBEDDINGS in [w.name for w in opt.weights if w.identity]
        train(ours, [opt])
    train(theirs, [native(decayed(theirs))])
    assert update_error(small_llama(), ours, theirs) <= 1e-5


def test_embeddings_are_frozen_on_request_until_the_optimizer_closes():
    ours, theirs = small_llama(), small_llama()
    theirs.get_parameter(EMBEDDINGS).requires_grad_(False)
    with identity(ours, link=SLOW, embeddings="frozen") as opt:
        assert [name for name, _ in opt.frozen] == [EMBEDDINGS]
        train(ours, [opt])
    train(theirs, [native(p for p in theirs.parameters() if p.requires_grad)])
    assert update_error(small_llama(), ours, theirs) <= 1e-5
    assert ours.get_parameter(EMBEDDINGS).requires_grad


def test_a_group_and_frozen_embeddings_contradict_each_other():
    model = small_llama()
    with pytest.raises(sw.InvalidArgument, match=rf"{EMBEDDINGS} is in param_groups, but embeddi"):
        sw.SubspaceAdamW(
            model, codec="block_random", param_groups=decayed(model), embeddings="frozen"
        )
    rest = [{"params": without_embeddings(model)}]
    with sw.SubspaceAdamW(model, codec="block_random", param_groups=rest, embeddings="frozen"):
        assert model.get_parameter(EMBEDDINGS).requires_grad


def test_embeddings_the_user_froze_stay_frozen_in_a_group():
    model = small_llama()
    model.get_parameter(EMBEDDINGS).requires_grad_(False)
    groups = [{"params": list(model.parameters())}]
    with sw.SubspaceAdamW(model, codec="block_random", lr=LR, param_groups=groups) as opt:
        before = model.get_parameter(EMBEDDINGS).clone()
        train(model, [opt], 2)
        assert opt.frozen == []
    assert torch.equal(model.get_parameter(EMBEDDINGS), before)


def test_groups_of_small_parameters_only_are_refused():
    model = small_llama()
    groups = [{"params": [p for p in model.parameters() if p.dim() == 1]}]
    with pytest.raises(sw.InvalidArgument, match="no trainable linear weight"):
        sw.SubspaceAdamW(model, codec="block_random", param_groups=groups)


def test_a_weight_of_no_group_may_have_a_dtype_that_is_not_compressed():
    model = small_llama()
    model.model.embed_tokens.double()
    groups = [{"params": without_embeddings(model)}]
    with identity(model, param_groups=groups) as opt:
        assert EMBEDDINGS not in [w.name for w in opt.weights]
