"""ZoSgd along directions of low rank: the oracle's bits, what is drawn when, and its state."""

from __future__ import annotations

import copy

import pytest
import sluiceway
import torch
from torch import nn
from zo_follow import follow
from zo_models import decoder, of_dtype, zo_train
from zo_oracle import low_rank_oracle_of


def low_rank(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, noise="lowrank", **options)


class WithFilters(nn.Module):
    """Parameters of one to four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(2))
        self.gain = nn.Parameter(torch.ones(3, 1, 5))
        self.head = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.gain.mean()
        for layer in self.layers:
            x = x + torch.tanh(layer(x.unflatten(-1, (2, 4)).transpose(1, 2))).transpose(
                1, 2
            ).flatten(2)
        return self.head(x)


@pytest.mark.parametrize(
    ("model", "directions", "weight_decay", "seed", "rank", "period", "steps"),
    [
        (decoder, 1, 0.0, 0, 4, 50, 200),
        (decoder, 3, 0.5, 2**40 + 1, 3, 7, 200),
        (decoder, 2, 0.5, 7, 1, 1, 30),
        (decoder, 1, 0.5, 7, 17, 1000, 30),
        (WithFilters, 1, 0.5, 3, 2, 5, 30),
    ],
)
def test_losses_and_weights_are_the_oracles(
    model, directions, weight_decay, seed, rank, period, steps
) -> None:
    torch.manual_seed(0)
    ours = model()
    theirs = copy.deepcopy(ours)
    opt = low_rank(
        ours, lr=0.02, weight_decay=weight_decay, directions=directions, seed=seed, rank=rank,
        period=period,
    )  # fmt: skip
    oracle = low_rank_oracle_of(theirs, rank, period, seed, directions, weight_decay)
    follow(opt, ours, oracle, steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_images_of_a_float32_matrix_and_sum(dtype) -> None:
    ours, theirs = (of_dtype(decoder(), dtype) for _ in range(2))
    opt = low_rank(ours, lr=0.01, weight_decay=0.1, seed=0, rank=2, period=15)
    follow(opt, ours, low_rank_oracle_of(theirs, 2, 15, 0, 1, 0.1))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(300, 250) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x).square().mean() for layer in self.layers)


def directions_of_step(opt: sluiceway.ZoSgd, model: nn.Module) -> list[tuple[torch.Tensor, ...]]:
    """z of the first matrix and of its bias, one a direction."""
    seen, x = [], torch.ones(1, 300)
    layer = model.layers[0]
    handle = layer.register_forward_pre_hook(  # Behind that which perturbs.
        lambda *_: seen.append([p.detach().double().clone() for p in layer.parameters()])
    )
    opt.step(lambda: model(x))
    handle.remove()
    return [
        tuple((p - m) / (2 * opt.options.eps) for p, m in zip(plus, minus, strict=True))
        for plus, minus in zip(seen[::2], seen[1::2], strict=True)
    ]


@pytest.mark.parametrize("rank", [1, 4])
def test_z_has_that_rank_and_unit_squares_and_its_rows_change_with_the_period(rank: int) -> None:
    model = Wide()
    for p in model.parameters():
        p.data.zero_()
    opt = low_rank(model, lr=0.0, eps=1.0, rank=rank, period=2, directions=2)
    steps = [directions_of_step(opt, model) for _ in range(4)]
    drawn = [z for step in steps for z, _ in step]
    for z in drawn:
        values = torch.linalg.svdvals(z)
        assert values[rank - 1] > 1
        assert values[rank] < 1e-3
    # By the scale alone; with U and V standard Gaussian the mean of a square has a variance of
    # about 2 (1 / 250 + 1 / 300) / rank for each of the two V.
    assert abs(torch.stack(drawn).square().mean() - 1) < 0.5
    of_period = [torch.cat([z for step in steps[k : k + 2] for z, _ in step]) for k in (0, 2)]
    assert [int(torch.linalg.matrix_rank(rows, rtol=1e-4)) for rows in of_period] == [rank, rank]
    assert torch.linalg.matrix_rank(torch.cat(of_period), rtol=1e-4) == 2 * rank
    columns = torch.cat(drawn, dim=1)  # All of them are new.
    assert torch.linalg.matrix_rank(columns, rtol=1e-4) == 8 * rank
    biases = torch.stack([bias for step in steps for _, bias in step])
    assert torch.linalg.matrix_rank(biases) == 8
    assert abs(biases.square().mean() - 1) < 0.2


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
@pytest.mark.parametrize("at", [0, 4, 6])
def test_resume_inside_of_a_period_and_between_two_gives_the_same_bits(
    weight_decay: float, at: int
) -> None:
    whole, first = decoder(), decoder()
    options = {"lr": 0.02, "weight_decay": weight_decay, "directions": 2, "seed": 5, "period": 3}
    expected = zo_train(low_rank(whole, **options), whole, range(10))
    opt = low_rank(first, **options)
    found = zo_train(opt, first, range(at))
    saved = copy.deepcopy((first.state_dict(), opt.state_dict()))
    again = decoder(seed=1)
    other = low_rank(again, **{**options, "lr": 9.0})
    again.load_state_dict(saved[0])
    for p in again.layers.parameters():  # What the optimizer's state has is its own.
        if p.dim() >= 2 and at > 0:
            p.data.zero_()
    other.load_state_dict(saved[1])
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert found + zo_train(other, again, range(at, 10)) == expected
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_a_state_of_other_options_or_shapes_is_refused() -> None:
    model = decoder()
    opt = low_rank(model, period=9)
    zo_train(opt, model, range(2))
    state = opt.state_dict()
    for options, match in (
        ({"period": 8}, "period was 9 when it was saved, here it is 8"),
        ({"rank": 5, "period": 9}, "rank was 4"),
        ({"noise": "gaussian"}, "noise was 'lowrank'"),
    ):
        with pytest.raises(sluiceway.InvalidArgument, match=match):
            sluiceway.ZoSgd(decoder(), **{"noise": "lowrank", **options}).load_state_dict(state)
    elementwise = sluiceway.ZoSgd(decoder(), noise="gaussian").state_dict()
    with pytest.raises(sluiceway.InvalidArgument, match="noise was 'gaussian'"):
        opt.load_state_dict(elementwise)
    for broken, match in (
        ({"low_rank_sum": torch.zeros(3, 11)}, r"is \(3, 11\), expected \(4, 11\)"),
        ({"master": torch.zeros(4, 7)}, r"is \(4, 7\), expected \(11, 7\)"),
    ):
        wrong = {**state, "state": {**state["state"], 0: {**state["state"][0], **broken}}}
        with pytest.raises(sluiceway.InvalidArgument, match=match):
            opt.load_state_dict(wrong)
    with pytest.raises(sluiceway.InvalidArgument, match="has no 'low_rank_sum'"):
        opt.load_state_dict({**state, "state": {0: {"master": torch.zeros(11, 7)}}})


def test_the_sum_of_a_period_is_all_that_a_matrix_has_beside_its_master() -> None:
    model = decoder()
    opt = low_rank(model, rank=2, weight_decay=0.1, lr=0.1)
    zo_train(opt, model, range(3))
    for p in model.parameters():
        shapes = {key: tuple(value.shape) for key, value in opt.state.get(p, {}).items()}
        matrix = {"master": tuple(p.shape), "low_rank_sum": (2, len(p))}
        assert shapes == (matrix if p.dim() >= 2 else {})
