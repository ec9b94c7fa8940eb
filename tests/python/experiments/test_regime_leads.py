"""The simulation of experiments/regimes agrees with plain formulas and with the engine."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from experiments.fidelity.methods import WEIGHT_DECAY, trainee
from experiments.offload_codec.projectors import DRAWS, Pair
from experiments.regimes import leads
from experiments.regimes.eight_bits import EightBits
from experiments.regimes.leads import Lead, bytes_of, lead_trainee
from experiments.regimes.questions import LEADS
from experiments.regimes.ways import why_not

LR = 1e-2


def model_of() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(45, 70), nn.LayerNorm(70), nn.Linear(70, 33, bias=False))


def trained(prepare, steps: int = 6) -> nn.Module:
    """A model after some steps of what `prepare` makes of it."""
    model = model_of()
    with prepare(model) as t:
        for seed in range(steps):
            x = torch.randn(16, 45, generator=torch.Generator().manual_seed(seed))
            model(x).square().mean().backward()
            t.optimizer.step()
            t.optimizer.zero_grad()
        if hasattr(t.optimizer, "synchronize"):
            t.optimizer.synchronize()
    return copy.deepcopy(model)


def simulated(method: str, ratio: float = 0.25, every: int | None = None, steps: int = 6):
    refresh = {"every": every} if every else None
    return trained(lambda m: lead_trainee(m, method, ratio, LR, 0, refresh), steps)


def engine(method: str, steps: int = 6) -> nn.Module:
    return trained(lambda m: trainee(m, method, 0.25, LR, 0), steps)


def assert_close(a: nn.Module, b: nn.Module, atol: float) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=atol, rtol=0, msg=lambda text, n=name: f"{n}: {text}")


def test_without_a_core_it_is_the_engine_with_a_residual_alone():
    assert_close(simulated("sim_none+residual"), engine("none+residual"), atol=2e-6)


def test_a_core_that_leaves_nothing_is_adamw_with_a_factored_moment(monkeypatch):
    """P and Q are the identity; the formula differs by two roundings to bf16."""

    def whole(g, ratio, generator, steps):
        return Pair(torch.eye(g.shape[0]), torch.eye(g.shape[1]))

    monkeypatch.setitem(DRAWS, "block_random", whole)
    found, expected = simulated("sim_block+residual", steps=3), model_of()
    moments: dict[str, list[torch.Tensor]] = {}
    vectors = [p for p in expected.parameters() if p.dim() == 1]
    plain = torch.optim.AdamW(vectors, lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(3):
        x = torch.randn(16, 45, generator=torch.Generator().manual_seed(seed))
        expected(x).square().mean().backward()
        for name, p in expected.named_parameters():
            if p.dim() == 1:
                continue
            g, t = p.grad.bfloat16().double(), seed + 1
            m, r, c = moments.get(name, [torch.zeros(()).double()] * 3)
            m = 0.9 * m + 0.1 * g
            r, c = 0.999 * r + 0.001 * (g**2).mean(1), 0.999 * c + 0.001 * (g**2).mean(0)
            moments[name] = [m, r, c]
            v = r[:, None] * c[None, :] / r.mean() / (1 - 0.999**t)
            d = (m / (1 - 0.9**t)) / (v.sqrt() + 1e-8)
            d = d / max(1.0, d.square().mean().sqrt().item())
            p.data = ((1 - LR * WEIGHT_DECAY) * p.double() - LR * d.bfloat16().double()).float()
        plain.step()
        expected.zero_grad()
    # An update at the edge of a rounding may be a bf16 apart: 2^-8 of at most some 3 LR.
    assert_close(found, expected, atol=3 * 3 * LR * 2**-8)
    differing = (found[0].weight - expected[0].weight).abs() > 1e-6
    assert differing.float().mean() < 0.05


def test_what_crosses_is_a_core_and_what_it_leaves_is_trained_or_kept():
    start = model_of()
    alone, both = simulated("sim_block", steps=1), simulated("sim_block+residual", steps=1)

    def rank(model: nn.Module) -> int:
        change = model[2].weight - (1 - LR * WEIGHT_DECAY) * start[2].weight
        return int(torch.linalg.matrix_rank(change.double(), rtol=1e-4))

    assert rank(alone) == 9  # 33 rows are groups of 32 and 1, of which 8 and 1 are kept.
    assert rank(both) > 9


def test_what_is_left_is_added_to_the_next_gradient(monkeypatch):
    seen = []
    compress = Pair.compress
    monkeypatch.setattr(Pair, "compress", lambda pair, g: seen.append(g) or compress(pair, g))
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    with lead_trainee(model, "sim_block+feedback", 0.25, 0.0, 0, {"every": 1}) as t:
        total, sent = torch.zeros(8, 8), torch.zeros(8, 8)
        for _ in range(4):
            model[0].weight.grad = torch.randn(8, 8)
            total += model[0].weight.grad
            t.optimizer.step()
            state = t.optimizer.state[model[0].weight]
            pair = state["pair"]
            sent += pair.decompress(compress(pair, seen[-1]).bfloat16().float())
    torch.testing.assert_close(sent + state["left"], total, atol=1e-5, rtol=0)


def test_in_its_turn_the_core_is_alone_and_else_there_is_none():
    assert_close(
        simulated("sim_block+residual+turns8", steps=7), simulated("sim_none+residual", steps=7), 0
    )
    assert_close(simulated("sim_block+residual+turns2", steps=1), engine("none+residual", 1), 2e-6)
    with pytest.raises(AssertionError):
        assert_close(
            simulated("sim_block+residual+turns2", steps=2),
            simulated("sim_none+residual", steps=2),
            1e-5,
        )


def test_moments_go_along_with_new_projectors():
    """M loses nothing between bases of one space, and V keeps its mean square."""
    q, turn = torch.linalg.qr(torch.randn(40, 8)).Q, torch.linalg.qr(torch.randn(8, 8)).Q
    state = {"m": torch.randn(8, 8), "rows": torch.rand(8), "cols": torch.rand(8)}
    state["cols"] *= state["rows"].mean() / state["cols"].mean()
    before = {name: t.clone() for name, t in state.items()}
    leads.transport(state, (q @ turn).T @ q, q.T @ (q @ turn))
    torch.testing.assert_close(turn @ state["m"] @ turn.T, before["m"], atol=1e-5, rtol=0)
    for name in ("rows", "cols"):
        torch.testing.assert_close(state[name].mean(), before[name].mean(), atol=1e-5, rtol=1e-5)


def test_projectors_are_drawn_anew_when_it_is_said():
    model = nn.Sequential(nn.Linear(24, 16, bias=False))
    with lead_trainee(model, "sim_block+residual", 0.5, LR, 0, {"every": 2}) as t:
        pairs = []
        for _ in range(5):
            model[0].weight.grad = torch.randn(16, 24)
            t.optimizer.step()
            pairs.append(t.optimizer.state[model[0].weight]["pair"])
    changed = [not torch.equal(old.p, new.p) for old, new in itertools.pairwise(pairs)]
    assert changed == [False, True, False, True]


def test_learned_columns_are_orthonormal_where_a_lead_says_so():
    model = nn.Sequential(nn.Linear(24, 16, bias=False))
    for method, is_orthonormal in (("sim_learned+orthonormal", True), ("sim_learned", False)):
        with lead_trainee(model, method, 0.5, LR, 0, {"every": 2}) as t:
            model[0].weight.grad = torch.randn(16, 24)
            t.optimizer.step()
            pair = t.optimizer.state[model[0].weight]["pair"]
        for side in pair:
            error = (side.T @ side - torch.eye(side.shape[1])).abs().max()
            assert bool(error < 1e-5) == is_orthonormal


def test_eight_bits_keep_what_is_small_to_a_share_of_itself():
    x = torch.randn(7, 111) * torch.logspace(-3, 0, 111)
    kept = EightBits(x)
    largest = x.flatten().abs().max()
    # Half a step between roots: |x - y| <= (sqrt|x| + sqrt|y|) sqrt(largest) / 254.
    bound = (x.abs().sqrt() + kept.values().abs().sqrt()) * largest.sqrt() / 254
    assert ((kept.values() - x).abs() <= bound + 1e-7).all()
    assert kept.values().shape == x.shape
    assert torch.equal(EightBits(torch.zeros(5)).values(), torch.zeros(5))
    assert EightBits.bytes_of(257) == 257 + 8


def test_bytes_are_those_of_what_is_kept_and_of_what_crosses():
    model = nn.Sequential(nn.Linear(64, 32, bias=False))
    cases = {
        "sim_none+residual": (4 * 96, 0),
        "sim_none+residual+momentum8": (4 * 96 + 2048 + 32, 0),
        "sim_block+residual": (4 * 96, 4 * 8 * 16),
        "sim_block+residual+turns4": (4 * 96, 8 * 16),
        "sim_block+feedback": (4 * 2048, 4 * 8 * 16),
    }
    assert {name: bytes_of(model, Lead.of(name), 0.25) for name in cases} == cases


@pytest.mark.parametrize(
    "method",
    ["sim_svd", "sim_block+sign", "sim_none+feedback", "sim_block+feedback+residual",
     "sim_block+momentum8"],
)  # fmt: skip
def test_what_no_lead_is_is_refused(method):
    with pytest.raises(ValueError, match=method.replace("+", r"\+")):
        Lead.of(method)


def test_leads_are_of_f32_and_take_nothing_more():
    assert {why_not(way.method, "fp32") for way in LEADS} == {None}
    for method, dtype in ((LEADS[0].method, "bf16"), (LEADS[0].method + "+kw", "fp32")):
        assert "is simulated" in why_not(method, dtype)
