"""Several optimizers over one model: each has its own part, and leaves the rest as it is."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_llama import EMBEDDINGS, small_llama
from small_models import loss_of, make, update_error, weights_of
from twins import LR, identity, train
from updates import SLOW


@pytest.mark.parametrize("more", [{}, {"embeddings": "frozen"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cell_that_runs_twice_is_refused_until_the_first_is_closed(dtype, more):
    model = small_llama().to(dtype)
    first = identity(model, embeddings="frozen")
    with pytest.raises(sw.InvalidArgument, match="belongs to another optimizer of this model"):
        identity(model, **more)
    with pytest.raises(sw.InvalidArgument, match=f"{EMBEDDINGS} belongs to another optimizer"):
        identity(model, param_groups=[model.get_parameter(EMBEDDINGS)])
    assert not model.get_parameter(EMBEDDINGS).requires_grad  # Nothing was changed.
    first.close()
    with identity(model, **more) as second:
        assert model.get_parameter(EMBEDDINGS).requires_grad != bool(more)
        assert bool(second.frozen) == bool(more)
    assert model.get_parameter(EMBEDDINGS).requires_grad


def test_one_that_nobody_refers_to_is_in_nobodys_way():
    model = make()
    first = identity(model)
    first.itself = first  # A cycle, which only the collector ends.
    del first
    with identity(model, link=SLOW) as opt:
        train(model, opt, 8)
    theirs = make()
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), model, theirs) <= 1e-5


def halves(model):
    return list(model.blocks[0].parameters()), [
        p for name, p in model.named_parameters() if not name.startswith("blocks.0")
    ]


def test_two_of_ours_train_disjoint_parts():
    ours, theirs = make(), make()
    with (
        identity(ours, param_groups=halves(ours)[0], link=SLOW) as one,
        identity(ours, param_groups=halves(ours)[1], link=SLOW) as other,
    ):
        for step in range(8):
            loss_of(ours, step).backward()
            for opt in (one, other):
                opt.step()
                opt.zero_grad()
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), ours, theirs) <= 1e-5


def calibrated(trained, make_other, every):
    """Train a part whose projectors are measured on a closure, beside what another trains."""
    model, calls = make(), []

    def closure():
        calls.append(1)
        return 1000 * loss_of(model, 500)

    # Nothing is ever replaced: the bits are those of a run that never measures.
    refresh = sw.Refresh(every=every, threshold=1e9, source="closure", closure=closure)
    mine, others = trained(model)
    with sw.SubspaceAdamW(
        model, lr=LR, codec="block_random", wire="fp32", link=SLOW, refresh=refresh,
        param_groups=[{"params": mine}],
    ) as opt, make_other(model, others) as other:  # fmt: skip
        for step in range(6):
            loss_of(model, step).backward()
            for each in (opt, other):
                each.step()
                each.zero_grad(set_to_none=False)  # Autograd adds to what is there.
    assert bool(calls) == bool(every)
    return weights_of(model)


class Native(torch.optim.SGD):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


OTHERS = {
    "torch": lambda model, rest: Native(rest, lr=0.01),
    "ours": lambda model, rest: identity(model, param_groups=rest, link=SLOW),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_calibration_closure_trains_nothing_that_another_optimizer_trains(other):
    left, right = (calibrated(halves, other, every) for every in (0, 2))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_calibration_closure_leaves_gradients_of_ordinary_parameters():
    def everything(model):
        return list(model.parameters()), [torch.nn.Parameter(torch.zeros(1))]

    left, right = (calibrated(everything, OTHERS["torch"], every) for every in (0, 2))
    assert all(torch.equal(left[name], right[name]) for name in left)
