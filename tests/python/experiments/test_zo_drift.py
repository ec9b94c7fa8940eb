"""experiments/zo/drift.py in small: what its table rests on."""

from __future__ import annotations

import json
import random

import pytest
import sluiceway
import torch
from torch import nn

from experiments.zo import drift

SHAPE, STEPS = (61, 67), 120


@pytest.fixture(params=drift.FAMILIES)
def rows(request) -> list[dict]:
    seed = random.randrange(1 << 40)
    return list(drift.measure(SHAPE, STEPS, request.param, seed, rates=(1e-6, 1e-5)))


def errors(rows: list[dict], lr: float) -> dict[str, float]:
    return {row["way"]: row["error"] for row in rows if row["lr"] == lr}


def test_the_log_is_where_the_steps_lead_and_16_bit_weights_in_place_are_not(rows) -> None:
    for lr in (1e-6, 1e-5):
        found = errors(rows, lr)
        # A step adds at most half a unit in the last place of 0.1, 3.7e-9, to an update near lr.
        assert 0 < found["log over bf16"] < 3.7e-9 / lr
        assert found["log over bf16"] == found["fp32 master"]
        assert found["in place, fp16"] > 0.5
        assert found["in place, bf16"] > found["in place, fp16"]
        assert found["log, new bf16 base every 100 steps"] > 0.1
    for way, large in errors(rows, 1e-6).items():
        assert large > errors(rows, 1e-5)[way]


def test_weights_that_lose_nothing_have_no_error() -> None:
    """The yardstick itself: f64 in place of a way."""

    class Exact:
        def __init__(self, start: torch.Tensor, lr: float) -> None:
            self.w, self.lr = start.double(), lr

        def step(self, number: int, z: torch.Tensor, g: float) -> None:
            self.w = self.w - self.lr * g * z.double()

        def theta(self) -> torch.Tensor:
            return self.w

    original = drift.ways

    def with_exact(weights, lr, family, seed):
        return {**original(weights, lr, family, seed), "f64": (Exact(weights, lr), weights)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "ways", with_exact)
        rows = list(drift.measure(SHAPE, 40, "gaussian", 5, rates=(1e-7,)))
    (row,) = (row for row in rows if row["way"] == "f64")
    assert row["error"] < 1e-7
    assert row["progress"] == pytest.approx(1.0, abs=1e-7)


def test_the_fp32_master_is_what_mode_write_back_trains() -> None:
    class Point(nn.Module):
        def __init__(self, start: torch.Tensor) -> None:
            super().__init__()
            self.drift = nn.Parameter(start.clone())  # The name that its noise has.

        def forward(self) -> torch.Tensor:
            return self.drift.sum()

    seed, lr, eps = random.randrange(1 << 40), 1e-5, 2.0**-10
    start = (0.02 * torch.randn(SHAPE)).bfloat16().float()
    model, way = Point(start), drift.Master(start, lr, "rademacher", seed)
    opt = sluiceway.ZoSgd(model, lr=lr, eps=eps, seed=seed, mode="write_back", tier="host")
    for number, g in enumerate(torch.randn(30).tolist()):
        signs = iter([1, -1] if number else [0, 1, -1])  # The first step looks at the forward.

        def closure(g: float = g, signs=signs) -> float:
            sign = next(signs)
            model()
            return sign * g * eps

        opt.step(closure)
        assert opt.stats()["zo"]["g"] == [g]
        way.step(number, None, g)
    assert torch.equal(model.state_dict()["drift"], way.theta())
    assert not torch.equal(way.theta(), start)


def test_the_table_is_of_the_rows_that_are_there(rows, tmp_path) -> None:
    family = rows[0]["family"]
    doubled = [*rows, *({**row, "error": 3 * row["error"]} for row in rows)]
    lines = drift.table(json.loads(json.dumps(doubled)), family).splitlines()
    assert lines[0] == "| way | lr 1e-06 | lr 1e-05 |"
    assert len(lines) == 2 + 6
    assert [drift.figure(error) for error in (0.00512, 2.04, 98.4, 258.6)] == [
        "0.0051", "2", "98", "259",
    ]  # fmt: skip
    for line, row in zip(lines[2:], rows, strict=False):
        assert line.startswith(f"| {row['way']} | {drift.figure(2 * row['error'])} |")
