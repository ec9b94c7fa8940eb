"""Parameter groups, also changed ones, train as with AdamW or raise a clear error."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_models import batch, loss_of, make, update_error
from torch import nn
from torch.nn import functional
from twins import LR, identity, train
from updates import SLOW

KINDS = [
    ("maximize", True),
    ("amsgrad", True),
    ("differentiable", True),
    ("decoupled_weight_decay", False),
]


def one_group(model, **more):
    return [{"params": list(model.parameters()), **more}]


@pytest.mark.parametrize(("key", "value"), KINDS)
def test_another_kind_of_adamw_is_refused_whenever_a_group_asks_for_it(key, value):
    words = f"{key} of a parameter group is {value}, expected {not value}"
    model = make()
    with pytest.raises(sw.InvalidArgument, match=words):
        identity(model, param_groups=one_group(model, **{key: value}))
    with identity(model) as opt:
        state = opt.state_dict()
        state["param_groups"][0][key] = value
        with pytest.raises(sw.InvalidArgument, match=words):
            opt.load_state_dict(state)
        opt.param_groups[0][key] = value
        loss_of(model, 0).backward()
        with pytest.raises(sw.InvalidArgument, match=words):
            opt.step()


DELETED = object()
NOT_NUMBERS = [
    ("lr", None, "lr of a parameter group is None"),
    ("lr", float("nan"), "lr of a parameter group is nan"),
    ("lr", "1e-3", "lr of a parameter group is '1e-3'"),
    ("lr", torch.ones(2), r"lr of a parameter group is tensor"),
    ("eps", None, "eps of a parameter group is None"),
    ("weight_decay", None, "weight_decay of a parameter group is None"),
    ("betas", None, "betas are None, expected two numbers"),
    ("betas", (0.9, None), r"betas\[1\] of a parameter group is None"),
    ("lr", DELETED, "lr of a parameter group is None"),
    ("eps", DELETED, "eps of a parameter group is None"),
    ("weight_decay", DELETED, "weight_decay of a parameter group is None"),
    ("betas", DELETED, "betas are None, expected two numbers"),
]


@pytest.mark.parametrize(("key", "value", "words"), NOT_NUMBERS)
@pytest.mark.parametrize("arguments", [{}, {"codec": "block_random", "accumulate": 1}])
def test_a_number_that_a_group_lacks_is_named_and_nothing_is_trained(key, value, words, arguments):
    """Groups are read when the first gradient comes, if a number of backwards is promised."""
    model = make()
    arguments = {"codec": "identity", "wire": "fp32", **arguments}
    with sw.SubspaceAdamW(model, lr=LR, link=SLOW, **arguments) as opt:
        train(model, opt, 1)
        opt.synchronize()
        before = [p.detach().clone() for p in model.parameters()]
        was = opt.param_groups[0][key]
        opt.param_groups[0][key] = value
        if value is DELETED:
            del opt.param_groups[0][key]
        with pytest.raises(sw.InvalidArgument, match=words):
            opt.step(lambda: loss_of(model, 1).backward())
        opt.param_groups[0][key] = was
        opt.zero_grad()
        assert all(map(torch.equal, before, model.parameters()))
        train(model, opt, 1)


@pytest.mark.parametrize("key", ["lr", "betas", "eps", "weight_decay"])
def test_a_state_whose_group_lacks_a_number_is_refused_by_name(key):
    with identity(make()) as opt:
        state = opt.state_dict()
        del state["param_groups"][0][key]
        with pytest.raises(sw.InvalidArgument, match=f"{key} (is|are) None, expected"):
            opt.load_state_dict(state)


def test_what_schedulers_and_wrappers_leave_in_groups_changes_nothing():
    ours, theirs = make(), make()
    foreign = {"foreach": True, "fused": True, "capturable": True, "name": "all", "lr_scale": 2.0}
    plain = {key: not value for key, value in KINDS}
    with identity(ours, param_groups=one_group(ours, **foreign, **plain), link=SLOW) as opt:
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, LR, total_steps=9)
        train(ours, opt, 8, schedule)
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    train(theirs, native, 8, torch.optim.lr_scheduler.OneCycleLR(native, LR, total_steps=9))
    assert update_error(make(), ours, theirs) <= 1e-5


@pytest.mark.parametrize(
    "groups",
    [
        lambda model: model.parameters(),
        lambda model: model.named_parameters(),
        lambda model: [{"params": model.named_parameters()}],
    ],
    ids=["parameters", "named", "named in a group"],
)
def test_parameters_without_groups_are_one_group(groups):
    ours, theirs = make(), make()
    with identity(ours, param_groups=groups(ours), link=SLOW) as opt:
        train(ours, opt, 8)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False), 8)
    assert update_error(make(), ours, theirs) <= 1e-5


@pytest.mark.parametrize("groups", [[1], [{"parms": []}], [{"params": []}, 2]])
def test_what_is_no_group_is_refused(groups):
    with pytest.raises(sw.InvalidArgument, match="param_groups holds"):
        identity(make(), param_groups=groups)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda groups: groups[0]["params"].pop(), "leave.bias is in none of the parameter groups"),
        (lambda groups: groups.clear(), "blocks.0.up.weight is in none of the parameter groups"),
        (
            lambda groups: groups[0]["params"].append(nn.Parameter(torch.zeros(3))),
            "another tensor is in one of the parameter groups",
        ),
        (lambda groups: groups[0].update(betas=(0.9, 0.99, 0.9)), "expected two numbers"),
    ],
    ids=["removed", "cleared", "added", "betas"],
)
def test_groups_that_were_changed_are_refused_and_nothing_is_trained(change, words):
    model = make()
    with identity(model, link=SLOW) as opt:
        loss_of(model, 0).backward()
        change(opt.param_groups)
        with pytest.raises(sw.InvalidArgument, match=words):
            opt.step()
        assert all(map(torch.equal, model.parameters(), make().parameters()))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", ["blocks.0.up.weight", "enter.weight"])
def test_a_weight_that_is_unfrozen_later_is_named(named, name):
    model = make()
    model.get_parameter(name).requires_grad_(False)
    groups = one_group(model) if named else None
    with identity(model, param_groups=groups, link=SLOW) as opt:
        train(model, opt, 2)
        model.get_parameter(name).requires_grad_(True)
        loss_of(model, 2)  # No gradient yet: a look at activations is nobody's business.
        words = f"{name} has a gradient, but was frozen when the optimizer was made"
        with pytest.raises(sw.InvalidArgument, match=words):
            train(model, opt, 1, first=2)


def test_what_stands_in_no_group_may_be_unfrozen_and_trained_by_others():
    ours, theirs = make(), make()

    def drive(model, make_opt):
        late = [model.enter.weight, model.enter.bias]
        model.enter.requires_grad_(False)
        rest = [p for p in model.parameters() if p.requires_grad]
        opt = make_opt(rest)
        train(model, opt, 4)
        model.enter.requires_grad_(True)
        other = torch.optim.SGD(late, lr=0.1)
        for step in range(4, 8):
            loss_of(model, step).backward()
            for each in (opt, other):
                each.step()
                each.zero_grad()
        return opt

    drive(ours, lambda rest: identity(ours, param_groups=rest, link=SLOW)).close()
    drive(theirs, lambda rest: torch.optim.AdamW(rest, lr=LR, foreach=False))
    assert update_error(make(), ours, theirs) <= 1e-5


class Bag(nn.Module):
    def __init__(self, kind, sparse):
        super().__init__()
        self.bag = kind(64, 16, sparse=sparse)
        self.stack = make()

    def forward(self, x):
        words = (x[:, :1].abs() * 10).long().clamp(0, 63)
        return self.stack(x + self.bag(words).reshape(len(x), -1))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_module_with_sparse_gradients_is_named_before_the_first_backward(kind):
    with pytest.raises(sw.InvalidArgument, match=r"the module of bag.weight has sparse=True"):
        identity(Bag(kind, True), embeddings="identity")
    model = Bag(kind, True)
    model.bag.requires_grad_(False)
    with identity(model) as opt:  # Nobody trains it.
        functional.mse_loss(model(batch(0)[0]), batch(0)[1]).backward()
        opt.step()


@pytest.mark.parametrize("more", [{}, {"target": ["bag.weight"]}], ids=["ordinary", "compressed"])
def test_a_gradient_that_is_sparse_after_all_is_named(more):
    model = Bag(nn.EmbeddingBag, False)
    with identity(model, **more) as opt:
        model.bag.sparse = True
        with pytest.raises(sw.InvalidArgument, match=r"gradient of bag.weight is torch.sparse_coo"):
            train(model, opt, 1)


def test_a_lazy_layer_is_named():
    model = make()
    model.leave = nn.LazyLinear(8)
    with pytest.raises(sw.InvalidArgument, match=r"leave.weight has no shape yet"):
        identity(model)
    loss_of(model, 0)
    identity(model).close()
