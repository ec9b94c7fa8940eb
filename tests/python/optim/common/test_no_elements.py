"""Parameters of no elements train as nothing, and everything beside them as if they were not."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import Stack, loss_of, make, same_bits
from torch import nn
from zo_models import decoder, zo_ids, zo_loss

EMPTY = {
    "embedding": lambda: nn.Embedding(0, 256),
    "linear": lambda: nn.Linear(8, 0),
    "batch": lambda: nn.ParameterList([nn.Parameter(torch.empty(0, 256, 256))]),
    "slices": lambda: nn.ParameterList([nn.Parameter(torch.empty(3, 0, 256))]),
    "vector": lambda: nn.ParameterList([nn.Parameter(torch.empty(0))]),
}
EMPTIES = pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)


def subspace(model, folder, **arguments):
    arguments = {"codec": "block_random", "embeddings": "identity"} | arguments
    return sw.SubspaceAdamW(model, lr=1e-2, **arguments)


def named(model, folder):
    return subspace(model, folder, target=r"(up|down|extra.*)\.weight|extra\.\d")


def on_host(model, folder):
    return sw.OffloadAdamW(model, lr=1e-2, tier="host")


def cores(model, folder):
    return sw.OffloadAdamW(model, lr=1e-2, tier="host", codec="block_random")


def on_disk(model, folder):
    return sw.OffloadAdamW(model, lr=1e-2, tier="disk", path=folder)


def uses(model):
    return sum(p.sum() for p in model.extra.parameters()) if hasattr(model, "extra") else 0.0


@EMPTIES
@pytest.mark.parametrize("opened", [subspace, named, on_host, cores, on_disk])
@pytest.mark.parametrize("used", [True, False])
def test_gradients_train_what_has_elements(tmp_path, empty, opened, used):
    with_empty, without = make(Stack), make(Stack)
    with_empty.extra = empty()
    for model, folder in ((with_empty, tmp_path / "a"), (without, tmp_path / "b")):
        with opened(model, folder) as opt:
            for step in range(2):
                (loss_of(model, step) + (uses(model) if used else 0.0)).backward()
                opt.step()
                opt.zero_grad()
            state = opt.state_dict()
            opt.load_state_dict(state)
            loss_of(model, 2).backward()
            opt.step()
    shape = [tuple(p.shape) for p in empty().parameters()]
    assert [tuple(p.shape) for p in with_empty.extra.parameters()] == shape
    del with_empty.extra
    assert same_bits(with_empty, without)


TIERS = {
    "device": {"tier": "device"},
    "host": {"tier": "host"},
    "disk": {"tier": "disk"},
    "low rank": {"tier": "host", "noise": "lowrank"},
    "write_back": {"tier": "host", "mode": "write_back"},
}


@EMPTIES
@pytest.mark.parametrize("options", TIERS.values(), ids=TIERS)
def test_losses_train_what_has_elements(tmp_path, empty, options):
    with_empty, without = decoder(), decoder()
    with_empty.extra = empty()
    for model, folder in ((with_empty, tmp_path / "a"), (without, tmp_path / "b")):
        store = {"store": sw.StoreOptions(path=folder)} if options["tier"] == "disk" else {}
        with sw.ZoSgd(model, lr=1e-2, seed=1, directions=1, **options, **store) as opt:
            for step in range(2):
                opt.step(lambda m=model, s=step: zo_loss(m, zo_ids(s)) + uses(m))
            loss = opt.evaluate(lambda m=model: zo_loss(m, zo_ids(0)) + uses(m))
            assert loss.isfinite()
            opt.load_state_dict(opt.state_dict())
    del with_empty.extra
    assert same_bits(with_empty, without)


def test_a_model_without_any_elements_is_refused():
    with pytest.raises(sw.InvalidArgument, match="none of the trainable parameters has elements"):
        sw.ZoSgd(nn.ModuleList([nn.Linear(3, 0, bias=False)]), tier="host")
