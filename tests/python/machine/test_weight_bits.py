"""The detection of changed weights on a card works on host tensors too."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from offload_models import loss_of, offload, run, words
from sluiceway.optim.offload import edited_weights
from sluiceway.optim.offload.weight_bits import checksum, differ, sums_of_bits


def _edits(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    flat, cut = weight.reshape(-1), weight.numel() // 3
    some = {name: flat.clone() for name in ("first", "last", "swapped", "far")}
    some["first"][0] += 1
    some["last"][-1] += 1
    some["swapped"][[cut, cut + 1]] = flat[[cut + 1, cut]]
    some["far"][[0, -1]] = flat[[-1, 0]]
    return {**some, "signs": -flat, "turned": flat.flip(0), "rolled": flat.roll(1024)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (1024,), (61, 67), (3, 2048)])
def test_every_edit_is_seen(shape, dtype):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    known = sums_of_bits(weight)
    assert differ([(sums_of_bits(weight.clone()), known)]) == [False]
    for name, edited in _edits(weight).items():
        if not torch.equal(edited, weight.reshape(-1)):
            assert differ([(sums_of_bits(edited), known)]) == [True], name


def test_a_tensor_without_elements_and_a_scalar_have_one():
    assert differ([(sums_of_bits(torch.zeros(0, 3)), sums_of_bits(torch.zeros(0, 3)))]) == [False]
    assert differ([(sums_of_bits(torch.tensor(1.5)), sums_of_bits(torch.tensor(1.25)))]) == [True]


def test_each_pair_is_compared_wherever_it_lies():
    a, b = torch.ones(5), torch.zeros(5)
    pairs = [(checksum(a), checksum(b)), (sums_of_bits(a), sums_of_bits(a)),
             (checksum(a), checksum(a)), (sums_of_bits(a), sums_of_bits(b))]  # fmt: skip
    assert differ(pairs) == [True, False, False, True]
    assert differ([]) == []


@pytest.mark.parametrize("edit", [lambda w: w.data[77].add_(0.5), lambda w: w.data.neg_()])
def test_an_edit_around_autograd_is_trained_on_and_refused_where_it_must_be(monkeypatch, edit):
    monkeypatch.setattr(edited_weights, "checksum", lambda w: sums_of_bits(w.detach()))
    model = words()
    with offload(model) as opt:
        run(model, opt, 1)
        edit(model.up.weight)
        opt.synchronize()
        wanted = model.up.weight.detach().clone()
        loss_of(model, 1).backward()
        number = next(i for i, w in enumerate(opt.weights) if w.parameter is model.up.weight)
        assert torch.equal(opt.engine.tensor_state(number)["master"], wanted)
        edit(model.up.weight)
        with pytest.raises(sw.InvalidArgument, match=r"up\.weight was changed between backward"):
            opt.step()
        opt.zero_grad()
