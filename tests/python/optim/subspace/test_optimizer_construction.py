"""A constructor that fails, at whatever stage, leaves the model as it was found."""

from __future__ import annotations

import gc

import pytest
import sluiceway as sw
import torch
from sluiceway.optim.common import engine_optimizer, model_hooks
from torch import nn
from twins import LR


class StageError(RuntimeError):
    """Raised by a stage of the constructor."""


def breaks(*_args, **_keywords):
    raise StageError


def no_memory(patch):
    return {"budget": sw.Budget(pinned=1)}


def stage(module, name):
    def spoil(patch):
        patch.setattr(module, name, breaks)
        return {}

    return spoil


def last_hook(patch):
    """The last of some dozens of hooks."""
    patch.setattr(Ends, "register_load_state_dict_pre_hook", breaks)
    return {}


class Ends(nn.Linear):
    """The layer whose hooks are registered last."""


def model_with_everything():
    """Embeddings that are frozen, weights that are compressed, others that are not; of 16 bits."""
    torch.manual_seed(0)
    layers = [nn.Embedding(300, 256), nn.Linear(256, 256), nn.LayerNorm(256), Ends(256, 256)]
    return nn.Sequential(*layers).to(torch.bfloat16)


def found(model):
    """Everything about a model that an optimizer changes."""
    kinds = ("_forward_pre_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
    return (
        [len(getattr(module, kind)) for module in model.modules() for kind in kinds],
        [
            (p.requires_grad, p.grad, p.grad_dtype, len(p._post_accumulate_grad_hooks or ()))
            for p in model.parameters()
        ],
    )


STAGES = {
    "budget": no_memory,
    "groups": lambda patch: {"param_groups": [{"params": []}]},
    "clock": stage(engine_optimizer, "StepClock"),
    "carrier": stage(engine_optimizer, "NormCarrier"),
    "hooks": stage(engine_optimizer, "ModelHooks"),
    "node": stage(model_hooks.torch.autograd.graph, "get_gradient_edge"),
    "last-hook": last_hook,
}


@pytest.mark.parametrize("spoil", STAGES.values(), ids=STAGES)
def test_a_constructor_that_fails_leaves_the_model_as_it_was(spoil, monkeypatch):
    model = model_with_everything()
    before = found(model)
    with monkeypatch.context() as patch:
        arguments = spoil(patch)
        with pytest.raises((StageError, sw.Error, ValueError)):
            sw.SubspaceAdamW(model, codec="block_random", lr=LR, **arguments)
        gc.collect()
    assert found(model) == before
    model(torch.zeros(1, 4, dtype=torch.int64)).float().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    with sw.SubspaceAdamW(model, codec="block_random", lr=LR):
        assert found(model) != before
    assert found(model) == before
