"""ZoSgd of models under torch.compile: threads meet in hooks, so they run what was written."""

from __future__ import annotations

import pytest
import sluiceway
import torch
from torch import nn
from zo_models import decoder, zo_ids, zo_loss


def compile_blocks(model: nn.Module) -> nn.Module:
    for block in model.layers:
        block.compile(backend="eager")
    return model


def compile_whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def trained(compiled, tier: str) -> tuple[list[float], list[float], list[torch.Tensor]]:
    """Losses of steps, and between these; weights. The first forward is compiled before a step."""
    model = decoder()
    called = compiled(model)
    evals = [zo_loss(called, zo_ids(0)).item()]
    losses = []
    with sluiceway.ZoSgd(model, lr=1e-2, tier=tier) as opt:
        for step in range(4):
            losses.append(opt.step(lambda step=step: zo_loss(called, zo_ids(step))).item())
            with torch.no_grad():
                evals.append(zo_loss(called, zo_ids(9)).item())
    return losses, evals, list(model.state_dict().values())


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("compiled", [compile_blocks, compile_whole])
def test_a_compiled_model_has_the_bits_of_one_that_is_not(compiled, tier: str) -> None:
    losses, evals, weights = trained(lambda model: model, tier)
    found = trained(compiled, tier)
    assert found[0] == losses
    assert found[1] == pytest.approx(evals, rel=1e-6)
    assert all(map(torch.equal, found[2], weights))


@pytest.mark.parametrize("mode", ["log", "write_back"])
def test_the_first_forward_of_what_must_be_one_graph_is_not_compiled(mode: str) -> None:
    losses = []
    for fullgraph in (False, True):
        model = decoder()
        called = torch.compile(model, backend="eager", fullgraph=True) if fullgraph else model
        if fullgraph:
            called(zo_ids(0))
        with sluiceway.ZoSgd(model, lr=1e-2, tier="host", mode=mode) as opt:
            found = [opt.step(lambda s=s: zo_loss(called, zo_ids(s))).item() for s in range(3)]  # noqa: B023
        losses.append(found)
    assert losses[0] == losses[1]
