"""A model whose layers are fused: what it looks like, what is left, and what is refused."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import sluiceway as sw
import torch
from small_models import (
    Stack,
    Tied,
    backward_that_calls,
    batch,
    elsewhere,
    loss_of,
    make,
    same_bits,
)
from test_fused import fused, hooked, recorded, updates_of
from torch import nn
from torch.nn import functional
from twins import LR, train
from updates import saved

WEIGHTS = [f"blocks.{block}.{layer}.weight" for block in (0, 1) for layer in ("up", "down")]


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": lambda model: copy.deepcopy(copy.copy(model)),
    "save": saved,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


def is_ordinary(model: nn.Module) -> bool:
    return all(type(block.up) is nn.Linear for block in model.blocks)


def test_names_classes_and_keys_are_as_they_were():
    model, plain = make(), make()
    with hooked(model) as opt:
        result = sw.fuse_linears(model, opt)
        assert result.names == WEIGHTS
        assert result.left == {}
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
        assert repr(model) == repr(plain)
        assert isinstance(model.blocks[0].up, nn.Linear)
        assert type(model.blocks[0].up).__name__ == "Linear"
        assert not is_ordinary(model)
    assert is_ordinary(model)


def test_fusing_twice_is_fusing_once_and_unfuse_undoes_it():
    model = make()
    with hooked(model) as opt:
        result = sw.fuse_linears(model.blocks[0], opt)
        assert result.names == WEIGHTS[:2]
        kind = type(model.blocks[0].up)
        assert sw.fuse_linears(model, opt) is result
        assert result.names == WEIGHTS
        assert type(model.blocks[0].up) is kind
        result.unfuse()
        assert is_ordinary(model)
        assert result.left == dict.fromkeys(WEIGHTS, "unfused")
        found = recorded(opt)
        train(model, opt, 1)
        assert found == {}
        sw.fuse_linears(model, opt)
        train(model, opt, 1)
        assert set(found) == set(result.names) == set(WEIGHTS)


@pytest.mark.parametrize("take", COPIES.values(), ids=COPIES.keys())
def test_a_copy_is_an_ordinary_model(take):
    model = make()
    with fused(model) as opt:
        train(model, opt, 2)
        twin = take(model)
        assert is_ordinary(twin)
        plain = make()
        plain.load_state_dict(model.state_dict())
        for one in (twin, plain):
            train(one, torch.optim.AdamW(one.parameters(), lr=LR), 2)
        assert same_bits(twin, plain)
        train(model, opt, 1)


def test_a_dropped_optimizer_leaves_ordinary_layers():
    model = make()
    opt = fused(model)
    train(model, opt, 1)
    del opt
    gc.collect()
    assert is_ordinary(model)


def test_a_state_goes_from_fused_layers_to_hooks_and_back():
    alone, model, other = (make() for _ in range(3))
    with fused(alone) as opt:
        train(alone, opt, 4)
    with fused(model) as opt:
        train(model, opt, 2)
        state, weights = opt.state_dict(), copy.deepcopy(model.state_dict())
    other.load_state_dict(weights)
    with hooked(other) as opt:
        opt.load_state_dict(state)
        sw.fuse_linears(other, opt)
        train(other, opt, 2, first=2)
    assert same_bits(alone, other)


class Mixed(Stack):
    """Layers of several kinds behind each other."""

    class Own(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.linear(x, self.weight)

    def __init__(self) -> None:
        super().__init__()
        self.own = self.Own(256, 256)
        self.replaced = nn.Linear(256, 256)
        self.replaced.forward = nn.Linear(256, 256).forward
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.experts = nn.Parameter(torch.randn(2, 256, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_what_is_left_is_said_with_its_reason():
    with fused(make(Mixed)) as opt:
        assert opt.fused_linears.names == WEIGHTS
        assert opt.fused_linears.left == {
            "experts": "a batch of matrices",
            "own.weight": "its Own has a forward of its own",
            "replaced.weight": "the forward of its Linear was replaced",
            "attention.in_proj_weight": "not the weight of a linear layer but of a "
            "MultiheadAttention",
            "attention.out_proj.weight": "used by 2 layers",
        }
    with fused(make(Tied)) as opt:
        assert opt.fused_linears.left == {"blocks.0.up.weight": "used by 2 layers"}
    with fused(make(), codec="identity") as opt:
        assert set(opt.fused_linears.left.values()) == {"codec identity projects nothing"}


def test_others_weights_are_refused_by_name():
    model = make()
    first = list(model.blocks[0].parameters())
    second = list(model.blocks[1].parameters())
    with (
        hooked(model, param_groups=[{"params": first}]) as opt,
        hooked(model, param_groups=[{"params": second}]) as other,
    ):
        with pytest.raises(sw.InvalidArgument, match=r"blocks\.1\.up\.weight belongs to another"):
            sw.fuse_linears(model, opt)
        assert is_ordinary(model)
        assert sw.fuse_linears(model.blocks[0], opt).names == WEIGHTS[:2]
        with pytest.raises(sw.InvalidArgument, match=r" up\.weight belongs to another"):
            sw.fuse_linears(model.blocks[0], other)
    with hooked(make()) as opt, pytest.raises(sw.InvalidArgument, match="this model has no"):
        sw.fuse_linears(model, opt)


def test_other_optimizers_and_closed_ones_are_refused():
    model = make()
    native = torch.optim.AdamW(model.parameters())
    with pytest.raises(sw.InvalidArgument, match="opt is AdamW, expected SubspaceAdamW"):
        sw.fuse_linears(model, native)
    opt = hooked(model)
    opt.close()
    with pytest.raises(sw.InvalidArgument, match="optimizer is closed"):
        sw.fuse_linears(model, opt)


def test_a_residual_in_every_step_is_refused():
    model = make()
    with hooked(model, residual="auto") as opt:
        with pytest.raises(sw.InvalidArgument, match="'factored' with residual_every=1"):
            sw.fuse_linears(model, opt)
        assert is_ordinary(model)
    with pytest.raises(sw.InvalidArgument, match="residual is 'sign' with fused"):
        fused(model, residual="sign")
    with fused(model) as opt:
        assert {one["residual"] for one in opt.describe()} == {"none"}
    with fused(model, codec="auto", residual_every=2, tokens_per_step=2**20) as opt:
        described = {(one["codec"], one["residual"]) for one in opt.describe()}
        assert described == {("block_random", "factored")}


@pytest.mark.parametrize("every", [2, 4])
def test_weights_form_their_gradients_in_turns(every):
    model = make()
    with fused(model, residual="factored", residual_every=every) as opt:
        for step in range(2 * every):
            found = recorded(opt)
            train(model, opt, 1, first=step)
            turn = [n for i, n in enumerate(WEIGHTS) if (step + i) % every == 0]
            assert sorted(found) == sorted(set(WEIGHTS) - set(turn)), step


def test_projectors_that_are_fitted_get_a_gradient_and_then_cores():
    model = make()
    with fused(model, codec="svd") as opt:
        found = recorded(opt)
        train(model, opt, 1)
        assert found == {}
        train(model, opt, 1, first=1)
        assert set(found) == set(WEIGHTS)


def test_projectors_are_replaced_when_hooks_replace_them():
    def run(make_optimizer) -> list[int]:
        model = make()
        with make_optimizer(model, codec="block_pca", refresh=sw.Refresh(every=3)) as opt:
            counts = []
            for step in range(7):
                train(model, opt, 1, first=step)
                counts.append(opt.stats()["subspace"]["refreshed"])
        return counts

    counts = run(fused)
    assert counts == run(hooked)
    assert sum(counts) > 2 * len(WEIGHTS)


def test_a_closure_measures_projectors_by_gradients():
    def run(make_optimizer) -> list[float]:
        model = make()
        biases = []
        refresh = sw.Refresh(2, source="closure", closure=lambda: loss_of(model, 100))
        with make_optimizer(model, refresh=refresh) as opt:
            for step in range(4):
                train(model, opt, 1, first=step)
                biases.append(opt.stats()["subspace"]["bias_mean"])
        return biases

    ours, theirs = run(fused), run(hooked)
    assert [one is None for one in ours] == [one is None for one in theirs]
    assert any(one is not None for one in ours)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine is None or mine == pytest.approx(other, rel=1e-3)


def test_a_hook_of_a_weight_gets_the_gradient_and_edits_it():
    def run(make_optimizer) -> nn.Module:
        model = make()
        with make_optimizer(model) as opt:
            model.blocks[0].up.weight.register_hook(lambda gradient: 0.0 * gradient)
            found = recorded(opt)
            train(model, opt, 2)
            assert WEIGHTS[0] not in found
        return model

    assert torch.allclose(run(fused).blocks[0].up.weight, run(hooked).blocks[0].up.weight)


def test_autograd_grad_of_inputs_adds_nothing_and_of_a_weight_is_refused():
    model = make()
    x = torch.randn(8, 16, requires_grad=True)
    with fused(model) as opt:
        found = recorded(opt)
        (dx,) = torch.autograd.grad(model(x).sum(), x)
        assert torch.allclose(dx, torch.autograd.grad(make()(x).sum(), x)[0])
        assert found == {}
        assert not opt.engine.has_gradient()
        with pytest.raises(sw.Unavailable, match=r"asks for the gradient of blocks\.0\.up"):
            torch.autograd.grad(model(x).sum(), model.blocks[0].up.weight)
        model(x).sum().backward(inputs=[model.blocks[1].up.weight])
        assert set(found) == {"blocks.1.up.weight"}


def test_a_backward_that_raised_between_two_uses_leaves_nothing():
    class Twice(Stack):
        broken = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.blocks[0].up(self.enter(x))
            if self.broken:
                x.register_hook(lambda _: 1 / 0)
            return self.leave(self.blocks[0].up(x))

    model, twin = make(Twice), make(Twice)
    with fused(model) as opt, fused(twin) as other:
        model.broken = True
        with pytest.raises(ZeroDivisionError):
            loss_of(model, 0).backward()
        model.broken = False
        opt.zero_grad()
        for one, of in ((model, opt), (twin, other)):
            train(one, of, 2)
    assert same_bits(model, twin)


@pytest.mark.parametrize("end", ["unfuse", "close"])
def test_a_backward_of_a_layer_that_is_fused_no_more_is_refused(end):
    model = make()
    opt = fused(model)
    loss = loss_of(model, 0)
    opt.fused_linears.unfuse() if end == "unfuse" else opt.close()
    with pytest.raises(sw.InvalidArgument, match=r"down\.weight was unfused, or its optimizer"):
        loss.backward()
    opt.close()


def test_frozen_weights_and_evaluation_are_left_alone():
    model = make()
    with fused(model) as opt:
        model.blocks[0].up.weight.requires_grad_(False)
        found = recorded(opt)
        train(model, opt, 1)
        assert set(found) == set(WEIGHTS[1:])
        model.blocks[0].up.weight.requires_grad_(True)
        with torch.inference_mode():
            expected = copy.deepcopy(model)(torch.ones(2, 16))
            assert torch.equal(model(torch.ones(2, 16)), expected)


def test_transforms_of_torch_see_an_ordinary_layer():
    model, plain = make(), make()
    x, parameters = torch.randn(5, 16), dict(plain.named_parameters())

    def loss(weights: dict[str, torch.Tensor], of: nn.Module) -> torch.Tensor:
        return torch.func.functional_call(of, weights, (x,)).sum()

    with fused(model):
        ours = torch.func.grad(loss)(parameters, model)
        assert torch.allclose(torch.func.vmap(model)(x[None])[0], plain(x), atol=1e-6)
        assert torch.equal(torch.jit.trace(model, (x,), check_trace=False)(x), plain(x))
    theirs = torch.func.grad(loss)(parameters, plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_parametrization_that_came_later_stays():
    model = make()
    opt = fused(model)
    torch.nn.utils.parametrizations.weight_norm(model.blocks[0].up)
    with torch.no_grad():
        x = torch.ones(2, 16)
        assert torch.allclose(model(x), make()(x), atol=1e-6)
        opt.close()
        assert torch.allclose(model(x), make()(x), atol=1e-6)
    assert "original0" in model.blocks[0].up.parametrizations.weight._parameters


def test_a_forward_of_another_thread_leaves_a_backward_alone():
    def run(meanwhile) -> nn.Module:
        model = make()
        with fused(model) as opt:
            for step in range(3):
                backward_that_calls(model, lambda: meanwhile(model), step)
                opt.step()
                opt.zero_grad()
        return model

    def forward_elsewhere(model: nn.Module) -> None:
        assert elsewhere(lambda: model(batch(50)[0])) is None

    assert same_bits(run(forward_elsewhere), run(lambda _: None))


def test_a_compiled_model_trains_as_with_hooks():
    def run(make_optimizer) -> nn.Module:
        model = make()
        with make_optimizer(model) as opt:
            train(torch.compile(model, backend="eager"), opt, 4)
        return model

    ours, theirs = run(fused), run(hooked)
    assert torch.allclose(ours.blocks[0].up.weight, theirs.blocks[0].up.weight, atol=1e-6)


def test_equal_runs_have_equal_bits():
    assert same_bits(updates_of(fused), updates_of(fused))
