"""Layers that read one input share its Q, and what it is projected to."""

from __future__ import annotations

from collections import Counter

import pytest
import sluiceway as sw
import torch
from sluiceway.model.one_input import first_of_input
from sluiceway.model.targets import select_weights
from sluiceway.optim.subspace.fused.fused_weight import FusedWeight
from sluiceway.optim.subspace.fused.shared_input import SharedInput
from small_llama import small_llama
from small_models import make, update_error
from test_fused import fused, hooked

LAYER = "model.layers.0."
TARGET = {"target": r"proj\.weight"}


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(step))
    return model(input_ids=ids, labels=ids).loss


def sides(opt: sw.SubspaceAdamW, side: str) -> dict[str, torch.Tensor]:
    """P or Q of each weight, as what the identity matrix is projected to."""
    found = {}
    for number, weight in enumerate(opt.weights):
        if weight.is_embedding:
            continue
        described = opt.engine.describe(number)
        rows = weight.shape[0] if side == "p" else weight.shape[1]
        out = torch.empty(rows, described["core_rows" if side == "p" else "core_cols"])
        scratch = torch.empty(described["project_scratch_elems"])
        opt.engine.project(number, side, torch.eye(rows), out, scratch, opt.device.compute())
        found[weight.name.removeprefix(LAYER)] = out
    return found


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return small_llama(num_hidden_layers=1)


def test_attention_and_mlp_have_inputs_of_their_own():
    weights = select_weights(llama(), TARGET["target"]).compressed
    first = first_of_input(weights)
    of_attention = dict.fromkeys(["q_proj", "k_proj", "v_proj"], "q_proj")
    assert first == {
        f"{LAYER}self_attn.{name}.weight": f"{LAYER}self_attn.{one}.weight"
        for name, one in of_attention.items()
    } | {
        f"{LAYER}mlp.{name}.weight": f"{LAYER}mlp.gate_proj.weight"
        for name in ("gate_proj", "up_proj")
    }
    assert first_of_input(select_weights(make()).compressed) == {}


@pytest.mark.parametrize("codec", ["block_random", "sparse_random"])
def test_q_is_shared_and_p_is_not(codec):
    with hooked(llama(), codec=codec, share_inputs=True, **TARGET) as opt:
        q, p = sides(opt, "q"), sides(opt, "p")
    with hooked(llama(), codec=codec, **TARGET) as opt:
        own = sides(opt, "q")
    for name in ("k_proj", "v_proj"):
        assert torch.equal(q["self_attn.q_proj.weight"], q[f"self_attn.{name}.weight"])
        assert not torch.equal(p["self_attn.q_proj.weight"], p[f"self_attn.{name}.weight"])
        assert not torch.equal(own["self_attn.q_proj.weight"], own[f"self_attn.{name}.weight"])
    assert torch.equal(q["mlp.gate_proj.weight"], q["mlp.up_proj.weight"])
    assert torch.equal(q["self_attn.o_proj.weight"], own["self_attn.o_proj.weight"])


@pytest.mark.parametrize("autocast", [False, True])
def test_an_input_is_projected_once(monkeypatch, autocast):
    model = llama()
    counts: Counter[str] = Counter()
    project = FusedWeight._project

    def counting(self: FusedWeight, side: str, *rest: object) -> torch.Tensor:
        counts[side] += 1
        return project(self, side, *rest)

    monkeypatch.setattr(FusedWeight, "_project", counting)
    with fused(model, share_inputs=True, **TARGET) as opt:
        assert len(opt.fused_linears.names) == 7
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(model, 0)
        assert counts == {"q": 4}  # Of attention, of its output, of the MLP, of its product.
        assert all(one._last is None for one in opt.fused_linears._inputs.values())
        loss.backward()
        assert counts == {"q": 4, "p": 7}


def trained(make_optimizer, checkpointed: bool = False, **arguments: object) -> torch.nn.Module:
    model = llama()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with make_optimizer(model, **TARGET, **arguments) as opt:
        for step in range(6):
            loss_of(model, step).backward()
            opt.step()
            opt.zero_grad()
    return model


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_run_agrees_with_hooks_that_share_q(checkpointed):
    ours = trained(fused, checkpointed, share_inputs=True)
    theirs = trained(hooked, share_inputs=True)
    assert update_error(llama(), ours, theirs) < 1e-3
    assert update_error(llama(), ours, trained(hooked)) > 1e-2


def test_a_state_of_other_projectors_is_refused():
    with hooked(llama(), share_inputs=True, **TARGET) as opt:
        state = opt.state_dict()
    with (
        hooked(llama(), **TARGET) as opt,
        pytest.raises(sw.InvalidArgument, match="share_inputs was True"),
    ):
        opt.load_state_dict(state)


def test_a_state_of_a_version_without_sharing_loads():
    with hooked(llama(), **TARGET) as opt:
        state = opt.state_dict()
        del state["sluiceway"]["arguments"]["share_inputs"]
        opt.load_state_dict(state)


def test_what_is_shared_is_of_this_very_input():
    shared, made = SharedInput(), []

    def ask(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return shared.projected(x, dtype, lambda: made.append(x.clone()) or made[-1])

    for _ in range(3):
        shared.join()
    x = torch.zeros(2)
    assert ask(x) is ask(x)
    assert len(made) == 1
    x.add_(1)
    assert torch.equal(ask(x), torch.ones(2))
    ask(x, torch.bfloat16)
    ask(x.clone())
    assert len(made) == 4
    x = torch.zeros(3)
    ask(x)
    assert shared._last is not None
    del x
    assert shared._last is None
