"""Values of other kinds: refused by one clear error, or taken for what they plainly are."""

from __future__ import annotations

import copy
import inspect
from dataclasses import FrozenInstanceError

import pytest
import sluiceway as sw
import torch
from torch import nn


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.Linear(512, 256))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"refresh": {"every": 1, "source": "closure"}}, "expected a sluiceway.Refresh"),
        ({"link": {"d2h_gbps": 1}}, "expected a sluiceway.Link"),
        ({"nnz": 2**63}, "nnz is 9223372036854775808, expected less than 9223372036854775808"),
        ({"block": 2**63}, "block is 9223372036854775808, expected less than"),
        ({"accumulate": 2**31}, "accumulate is 2147483648, expected auto or less than 2147483648"),
        ({"residual_every": 2**31}, "residual_every is 2147483648, expected less than"),
        ({"ratio": 1.5}, "ratio is 1.5, expected auto or at most 1"),
    ],
)
def test_an_option_that_cannot_be_names_its_bound_and_changes_nothing(given, text):
    model = small()
    with pytest.raises(sw.InvalidArgument, match=text):
        sw.SubspaceAdamW(model, **given)
    assert all(p.requires_grad for p in model.parameters())
    sw.SubspaceAdamW(model, codec="block_random").close()


@pytest.mark.parametrize("rates", [(float("inf"), 1.0), (1.0, 1.0, float("inf")), (True, 1.0)])
def test_a_link_has_finite_numbers(rates):
    with pytest.raises(sw.InvalidArgument, match="Link: "):
        sw.Link(*rates)


def test_a_value_cannot_be_assigned_to():
    link = sw.Link(1, 2)
    with pytest.raises(FrozenInstanceError, match="d2h_gbps"):
        link.d2h_gbps = 3.0
    assert link == sw.Link(1, 2)


def test_names_may_come_in_a_set():
    with sw.SubspaceAdamW(small(), codec="block_random", target={"0.weight"}) as optimizer:
        assert [w.name for w in optimizer.weights] == ["0.weight"]


def test_a_subclass_has_its_own_signature():
    class Mine(sw.SubspaceAdamW):
        def __init__(self, model, extra, **rest):
            super().__init__(model, **rest)

    assert list(inspect.signature(Mine).parameters) == ["model", "extra", "rest"]


def _numbers(state: dict) -> tuple[int, int]:
    """Return the numbers of a compressed weight and of an ordinary parameter in a state."""
    compressed = [n for n, values in state["state"].items() if "codec" in values]
    ordinary = [n for n, values in state["state"].items() if "codec" not in values]
    return compressed[0], ordinary[0]


BROKEN = {
    "an ordinary state is None": lambda s, w, o: s["state"].update({o: None}),
    "an ordinary state is a list": lambda s, w, o: s["state"].update({o: []}),
    "codec without storage": lambda s, w, o: s["state"][w].update(
        codec=s["state"][w]["codec"].to("meta")
    ),
    "second moment flattened": lambda s, w, o: s["state"][w].update(
        exp_avg_sq=s["state"][w]["exp_avg_sq"].reshape(1, -1)
    ),
    "step is a word": lambda s, w, o: s["state"][w].update(step="x"),
    "no codecs": lambda s, w, o: s["sluiceway"].update(codecs=[]),
    "names is a number": lambda s, w, o: s["sluiceway"].update(names=3),
    "state is a number": lambda s, w, o: s.update(state=3),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_state_is_refused_by_name_and_changes_nothing(name):
    torch.manual_seed(0)
    model = small()
    with sw.SubspaceAdamW(model, codec="block_random", lr=1e-3) as optimizer:
        model(torch.randn(4, 256)).square().sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        broken = copy.deepcopy(state)
        BROKEN[name](broken, *_numbers(state))
        with pytest.raises(sw.Error):
            optimizer.load_state_dict(broken)
        again = optimizer.state_dict()
    for number, values in state["state"].items():
        for key, value in values.items():
            same = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
            assert same(value, again["state"][number][key]), (number, key)
    assert again["param_groups"] == state["param_groups"]
