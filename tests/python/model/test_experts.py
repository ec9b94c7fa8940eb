"""Experts that a model keeps as one 3-D parameter: each slice is a weight of its own."""

from __future__ import annotations

import copy
import io

import pytest
import sluiceway as sw
import torch
from mixtures import EXPERTS, KINDS, language_model, loss_of_tokens
from sluiceway.model.targets import select_weights
from small_models import batch, distance, make, same_bits, update_error
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from twins import LR, identity, train

WIDTH = 256
SLOW = sw.Link(d2h_gbps=0.2, h2d_gbps=0.2, latency_us=50)  # A missing wait is caught.


class Experts(nn.Module):
    """Tokens go to the experts that the caller chooses; the others' gradients are zeros."""

    def __init__(self, count: int = EXPERTS, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width, width) / width**0.5)

    def forward(self, x: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
        return x + sum(torch.tanh(x @ self.weight[number]) for number in chosen)


class Mixture(nn.Module):
    again = False

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.experts = Experts(width=width)
        self.leave = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
        x = self.enter(x)
        if chosen:
            x = self.experts(x, chosen)
        if self.again:
            x = checkpoint(self.experts, x, chosen, use_reentrant=False)
        return self.leave(x)


ROUTES = [(0, 1, 2, 3), (0, 3), (0, 1), (2,), (0, 2, 3), (1,)]


def routed(model: nn.Module, step: int, routes: list[tuple[int, ...]] = ROUTES) -> torch.Tensor:
    x, y = batch(step)
    return functional.mse_loss(model(x, routes[step % len(routes)]).float(), y)


def trained_error(
    make_model, loss, steps: int = 8, micro_batches: int = 1, eps: float = 1e-8, **arguments
) -> float:
    """Relative error of what training changed, against torch's AdamW."""
    ours, theirs = make_model(), make_model()
    with identity(ours, link=SLOW, eps=eps, **arguments) as opt:
        train(ours, opt, steps, loss=loss, micro_batches=micro_batches)
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, eps=eps, foreach=False)
    train(theirs, reference, steps, loss=loss, micro_batches=micro_batches)
    return update_error(make_model(), ours, theirs)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_of_transformers_are_compressed_and_train_as_with_adamw(kind, implementation):
    def make_model():
        return language_model(kind, implementation)

    compressed = {w.name for w in select_weights(make_model()).compressed}
    assert {
        f"model.layers.{layer}.mlp.experts.{half}"
        for layer in range(2)
        for half in ("gate_up_proj", "down_proj")
    } <= compressed
    # With a smaller eps, AdamW makes steps of what is left of gradients that cancel.
    error = trained_error(make_model, loss_of_tokens, eps=1e-6, embeddings="identity")
    assert error <= 1e-5


def test_each_slice_is_a_weight_with_a_name_of_its_own():
    with sw.SubspaceAdamW(make(Mixture), codec="block_random") as opt:
        described = opt.describe()
        assert [weight["name"] for weight in described] == [
            f"experts.weight[{number}]" for number in range(EXPERTS)
        ]
        assert {(w["core_rows"], w["core_cols"]) for w in described} == {(64, 64)}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("norm_mode", ["exact", "speculative"])
def test_an_expert_without_tokens_goes_on_by_momentum_and_decay(micro_batches, norm_mode):
    error = trained_error(
        lambda: make(Mixture), routed, micro_batches=micro_batches, norm_mode=norm_mode
    )
    assert error <= 1e-5


def test_experts_that_nothing_calls_have_no_gradient_and_stay():
    def loss(model, step):
        return routed(model, step, [(0, 1), ()])

    assert trained_error(lambda: make(Mixture), loss) <= 1e-5


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_an_expert_without_tokens_costs_one_byte_to_the_host(wire):
    model = make(Mixture)
    crossed = []
    with sw.SubspaceAdamW(model, lr=LR, codec="block_random", wire=wire) as opt:
        whole = sum(weight["d2h_bytes"] for weight in opt.describe())
        for step, route in enumerate([(0, 1, 2, 3), (0, 2)]):
            routed(model, 0, [route]).backward()
            opt.step()
            opt.synchronize()  # What crossed before step() returned, and after.
            late = opt.engine.take_stats()
            crossed.append(opt.stats()["bytes"]["d2h"] + late["d2h_bytes"])
            assert opt.stats()["bytes"]["h2d"] + late["h2d_bytes"] == whole, step
            opt.zero_grad()
    assert crossed == [whole, whole // 2 + 2]


def test_names_and_expressions_pick_experts_of_any_size():
    def picked(target):
        return [w.name for w in select_weights(make(Mixture, width=32), target).compressed]

    assert picked("experts") == ["experts.weight"]
    assert picked(["experts.weight"]) == ["experts.weight"]
    with pytest.raises(sw.InvalidArgument, match="no trainable linear weight"):
        picked("all-linear")


def test_convolutions_and_tables_of_one_slice_are_no_experts():
    model = nn.Module()
    model.experts = Experts()
    model.wave = nn.Conv1d(512, 512, 600)
    model.position = nn.Parameter(torch.zeros(1, 512, 512))
    selection = select_weights(model)
    assert [weight.name for weight in selection.compressed] == ["experts.weight"]
    assert {name for name, _ in selection.ordinary} == {"position", "wave.weight", "wave.bias"}
    assert "wave.weight" not in [w.name for w in select_weights(model, ".*").compressed]


def test_slices_that_overlap_are_refused():
    model = make(Mixture)
    model.experts.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH).expand(EXPERTS, WIDTH, WIDTH))
    with pytest.raises(sw.InvalidArgument, match=r"experts.weight has strides \(0, 256, 1\)"):
        sw.SubspaceAdamW(model, codec="block_random")


def resumed(model: nn.Module, stored: io.BytesIO, **arguments) -> sw.SubspaceAdamW:
    opt = sw.SubspaceAdamW(model, lr=LR, **arguments)
    stored.seek(0)
    opt.load_state_dict(torch.load(stored, weights_only=True))
    return opt


@pytest.mark.parametrize(
    "arguments",
    [
        {"codec": "identity", "wire": "fp32"},
        {"codec": "svd", "accumulate": 1},
        {"codec": "block_random", "wire": "int8", "norm_mode": "speculative"},
    ],
    ids=["identity", "svd", "int8-speculative"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_state_is_that_of_the_slices_and_goes_on_bit_for_bit(arguments, dtype):
    def typed():
        return make(Mixture).to(dtype)

    def loss(model, step):
        x, y = batch(step)
        return functional.mse_loss(model(x.to(dtype), ROUTES[step % 6]).float(), y)

    whole, first = typed(), typed()
    with sw.SubspaceAdamW(whole, lr=LR, **arguments) as opt:
        train(whole, opt, 9, loss=loss)
    stored = io.BytesIO()
    with sw.SubspaceAdamW(first, lr=LR, **arguments) as opt:
        train(first, opt, 5, loss=loss)
        state = opt.state_dict()
        assert len(state["state"][2]["slices"]) == EXPERTS
        torch.save(state, stored)
    second = typed()
    second.load_state_dict(first.state_dict())
    with resumed(second, stored, **arguments) as opt:
        train(second, opt, 4, first=5, loss=loss)
    assert same_bits(whole, second)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: state.pop(), "slices of experts.weight is not a list of 4 states"),
        (lambda state: state[2].pop("step"), r"state of experts.weight\[2\] has no 'step'"),
        (
            lambda state: state[3].update(exp_avg=torch.zeros(3, 3)),
            r"exp_avg of experts.weight\[3\] is \(3, 3\), expected \(256, 256\)",
        ),
    ],
)
def test_a_state_with_a_broken_slice_is_refused_and_changes_nothing(spoil, words):
    model = make(Mixture)
    with identity(model) as opt:
        train(model, opt, 2, loss=routed)
        good = opt.state_dict()
        bad = copy.deepcopy(good)
        spoil(bad["state"][2]["slices"])
        with pytest.raises(sw.InvalidArgument, match=words):
            opt.load_state_dict(bad)
        assert torch.equal(
            opt.state_dict()["state"][2]["slices"][1]["exp_avg"],
            good["state"][2]["slices"][1]["exp_avg"],
        )


@pytest.mark.parametrize("codec", ["block_random", "svd", "none"])
def test_residuals_of_experts_are_the_same_at_once_and_at_the_step(codec):
    def trained(accumulate):
        model = make(Mixture)
        with sw.SubspaceAdamW(model, lr=LR, codec=codec, accumulate=accumulate, link=SLOW) as opt:
            train(model, opt, 6, loss=routed)
            opt.synchronize()
            assert not opt._gradients.totals
        return model

    assert same_bits(trained("auto"), trained(1))


def test_experts_that_run_twice_in_a_forward_are_trained_by_the_sum():
    class Twice(Mixture):
        again = True

    assert trained_error(lambda: make(Twice), routed) <= 1e-5
    model = make(Twice)
    with sw.SubspaceAdamW(model, lr=LR, codec="block_random", accumulate=1) as opt:
        before = routed(model, 0).item()
        train(model, opt, 12, loss=lambda m, _: routed(m, 0))
        assert routed(model, 0).item() < before


def test_clipping_sees_the_norm_of_all_slices():
    ours, theirs = make(Mixture), make(Mixture)
    with identity(ours, target="experts") as opt:
        routed(ours, 1).backward()
        routed(theirs, 1).backward()
        norm = torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-5)
        opt.step()
    torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False).step()
    assert distance(ours, theirs) <= 1e-6
