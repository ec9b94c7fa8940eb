"""ZoSgd as an optimizer: blocks that are found, resume, schedulers, nesting, autocast."""

from __future__ import annotations

import copy

import pytest
import sluiceway
import torch
from sluiceway import _core
from sluiceway.model.blocks import find_blocks
from small_llama import small_llama, tokens
from torch import nn
from zo_models import decoder, zo_ids, zo_loss
from zo_oracle import Oracle


def train(opt: sluiceway.ZoSgd, model: nn.Module, steps: range) -> list[float]:
    return [opt.step(lambda: zo_loss(model, zo_ids(s))).item() for s in steps]  # noqa: B023


def same(left: nn.Module, right: nn.Module) -> bool:
    return all(map(torch.equal, left.parameters(), right.parameters()))


def test_a_decoder_of_transformers_is_trained_and_its_layers_are_the_blocks() -> None:
    model = small_llama(num_hidden_layers=3)
    opt = sluiceway.ZoSgd(model, lr=1e-4)
    assert opt.blocks.name == "model.layers"
    assert [name for name, _ in opt.blocks.blocks] == [f"model.layers.{i}" for i in range(3)]
    ids = tokens(0)
    losses = [opt.step(lambda: model(input_ids=ids, labels=ids).loss).item() for _ in range(30)]
    assert losses[-1] < losses[0] - 0.05
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_of_nested_lists_that_of_the_layers_is_chosen() -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(5)))
    model = nn.Sequential(nn.Embedding(9, 8), layers, nn.Linear(8, 9))
    assert find_blocks("x", model).name == "1"
    assert find_blocks("x", nn.Sequential(nn.Linear(3, 3), nn.ReLU())).blocks[0][0] == "0"
    experts = decoder()
    for layer in experts.layers:
        layer.experts = nn.ModuleList(nn.Linear(7, 7) for _ in range(20))
    assert find_blocks("x", experts).name == "layers"


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_resume_gives_the_same_bits(weight_decay: float) -> None:
    whole, first = decoder(), decoder()
    options = {"lr": 0.02, "weight_decay": weight_decay, "directions": 2, "seed": 5}
    expected = train(sluiceway.ZoSgd(whole, **options), whole, range(8))
    opt = sluiceway.ZoSgd(first, **options)
    found = train(opt, first, range(4))
    saved = copy.deepcopy((first.state_dict(), opt.state_dict()))
    again = decoder(seed=1)
    other = sluiceway.ZoSgd(again, **{**options, "lr": 9.0})
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    assert found + train(other, again, range(4, 8)) == expected
    assert same(whole, again)


def test_a_state_of_other_options_or_of_another_model_is_refused() -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(model, weight_decay=0.1)
    train(opt, model, range(1))
    state = opt.state_dict()
    for options, match in (
        ({"seed": 3}, "seed was 0 when it was saved, here it is 3"),
        ({"directions": 2}, "directions was 1"),
        ({"noise": "gaussian"}, "noise was 'rademacher'"),
    ):
        with pytest.raises(sluiceway.InvalidArgument, match=match):
            sluiceway.ZoSgd(model, **options).load_state_dict(state)
    with pytest.raises(sluiceway.InvalidArgument, match="the state has 18 weights"):
        sluiceway.ZoSgd(decoder(blocks=2)).load_state_dict(state)
    for broken in ({}, {**state, "sluiceway": {}}, {**state, "state": {0: {"master": 3}}}):
        with pytest.raises(sluiceway.InvalidArgument, match="load_state_dict"):
            opt.load_state_dict(broken)


def test_micro_batches_in_the_closure_are_one_batch() -> None:
    model, other = decoder(), decoder()
    ids = zo_ids(3, rows=4)
    opt, twin = (sluiceway.ZoSgd(m, lr=1e-3) for m in (model, other))
    for _ in range(5):
        parts = opt.step(lambda: (zo_loss(model, ids[:2]) + zo_loss(model, ids[2:])) / 2)
        assert torch.allclose(parts, twin.step(lambda: zo_loss(other, ids)), atol=1e-4)


def test_of_a_list_the_loss_is_the_mean_in_float32() -> None:
    ours, theirs = decoder(), decoder()
    opt = sluiceway.ZoSgd(ours, lr=0.02, directions=2)
    groups = [{"params": list(theirs.parameters()), "weight_decay": 0.0}]
    oracle = Oracle(theirs, groups, 1e-3, 0, 2, _core.stable_hash)
    for step in range(3):
        batches = [zo_ids(3 * step + k, rows=k + 1) for k in range(3)]

        def mean(model: nn.Module, batches: list[torch.Tensor] = batches) -> torch.Tensor:
            losses = [zo_loss(model, ids) for ids in batches]
            return (losses[0] + losses[1] + losses[2]) / 3

        found = opt.step([lambda ids=ids: zo_loss(ours, ids) for ids in batches])
        assert found.item() == oracle.step(mean, [0.02])
        assert same(ours, theirs)
        parts = [lambda ids=ids: zo_loss(ours, ids) for ids in batches]
        with torch.no_grad():
            assert opt.evaluate(parts) == mean(theirs)
            assert opt.evaluate(parts[0]) == zo_loss(theirs, batches[0])
        assert same(ours, theirs)


def test_a_block_is_perturbed_once_a_direction_and_let_go_before_the_next() -> None:
    model = decoder()
    opt = sluiceway.ZoSgd(model, directions=2)
    events: list[tuple[str, int, int]] = []
    tier = opt._tier
    acquire, release = tier.acquire, tier.release
    tier.acquire = lambda unit, d: (events.append(("+", unit, d)), acquire(unit, d))[1]
    tier.release = lambda unit, d: (events.append(("-", unit, d)), release(unit, d))[1]
    opt.step([lambda: zo_loss(model, zo_ids(0)), lambda: zo_loss(model, zo_ids(1))])
    assert events == [(e, unit, d) for unit in range(3) for d in range(2) for e in "+-"]


def test_micro_batches_of_a_list_are_compared_each_with_itself() -> None:
    model, calls = decoder(), []

    def second() -> torch.Tensor:
        calls.append(1)
        return zo_loss(model, zo_ids(len(calls) // 2))

    opt = sluiceway.ZoSgd(model)
    with pytest.raises(
        sluiceway.InvalidArgument, match="forward pass - of direction 0, closure 1 differ from"
    ):
        opt.step([lambda: zo_loss(model, zo_ids(7)), second])
    for nothing in ([], [None], [lambda: 1.0, 3]):
        with pytest.raises(sluiceway.InvalidArgument, match="a function that returns the loss"):
            opt.step(nothing)


class Nested(nn.Module):
    """Each block calls the next inside of itself, and reads its own weights after it."""

    class Member(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up, self.inner = nn.Linear(5, 5), nn.Linear(5, 5), []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.down(x))
            for inner in self.inner:
                x = x + inner(x)
            return self.up(x)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Member() for _ in range(3))
        for outer, inner in zip(self.layers, list(self.layers)[1:], strict=False):
            outer.inner.append(inner)  # A list that torch does not see: no member of the other.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x)


def measured(model: nn.Module, closure, **options: object) -> float:
    """g of one step that moves nothing."""
    opt = sluiceway.ZoSgd(model, lr=0.0, **options)
    opt.step(closure)
    return opt.stats()["zo"]["g"][0]


def test_blocks_inside_blocks_are_measured_with_their_own_forward_pass() -> None:
    torch.manual_seed(0)
    model, x = Nested(), torch.randn(4, 5)
    found = measured(model, lambda: model(x).square().mean())
    names = dict(model.named_parameters())
    assert len(names) == 12
    assert found != 0
    losses = []
    for sign in (1, -1):
        moved = {}
        for name, p in names.items():
            plus, minus = torch.empty_like(p.data), torch.empty_like(p.data)
            key = (0, 0, _core.stable_hash(name), 0)
            _core.perturb(p.data, plus, minus, [], 1.0, 1e-3, "rademacher", *key)
            moved[name] = plus if sign == 1 else minus
        own = {name: p.data for name, p in names.items()}
        for name, p in names.items():
            p.data = moved[name]
        with torch.no_grad():
            losses.append(model(x).square().mean())
        for name, p in names.items():
            p.data = own[name]
    assert found == ((losses[0] - losses[1]) / torch.tensor(2e-3)).item()


def test_autocast_keeps_no_cast_of_the_other_forward_pass() -> None:
    model, ids = decoder(), zo_ids(0)

    def closure() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return zo_loss(model, ids)

    inside = measured(model, closure, eps=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        around = measured(model, lambda: zo_loss(model, ids), eps=0.1)
    plain = measured(model, lambda: zo_loss(model, ids), eps=0.1)
    assert inside == around != plain
    assert abs(inside - plain) < 0.3 * abs(plain)


def test_frozen_weights_stay_and_a_block_of_them_may_be_left_out() -> None:
    model = decoder()
    model.layers[1].requires_grad_(False)
    before = copy.deepcopy(model.layers[1])
    opt = sluiceway.ZoSgd(model, lr=0.1)
    opt.step(lambda: model.layers[2](model.layers[0](model.embed(zo_ids(0)))).square().mean())
    assert same(before, model.layers[1])
    assert opt.committed_steps == 1


def test_vectors_have_no_decay_and_matrices_do() -> None:
    model = decoder()
    begun = copy.deepcopy(model)
    opt = sluiceway.ZoSgd(model, lr=0.5, weight_decay=0.5)
    opt.step(lambda: zo_loss(model, zo_ids(0)) * 0)
    for p, q in zip(model.parameters(), begun.parameters(), strict=True):
        assert torch.equal(p, q * 0.75 if p.dim() >= 2 else q)


def test_vectors_of_16_bits_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"norms and biases \(for instance layers.0.norm.weight\)"):
        sluiceway.ZoSgd(decoder().bfloat16())
