"""Learning lowers the bias on unseen gradients, stops when it should, and is reproducible."""

from __future__ import annotations

import math

import pytest
import torch
from optim.subspace.test_learner_objective import dense_of, random_pattern
from sluiceway import _host_allocator
from sluiceway.machine.device_ops import HostOps
from sluiceway.optim.subspace import learner
from sluiceway.optim.subspace.learner import TorchLearner

M, N = 96, 64


class Drawn:
    """Gradients that share four strong directions, and a pair of projectors."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.left, self.right = self.drawn(M, 4), self.drawn(N, 4)
        self.g, self.unseen = self.gradient(0.5), self.gradient(0.5)
        self.p, self.q = self.sparse(M, M // 2, 4), self.sparse(N, N // 2, 4)

    def drawn(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def gradient(self, noise):
        return self.left @ self.drawn(4, 4) @ self.right.t() + noise * self.drawn(M, N)

    def sparse(self, rows, cols, nnz):
        nnz = min(nnz, cols)
        index = random_pattern(rows, cols, nnz, self.generator).int()
        return index, self.drawn(rows, nnz) / nnz**0.5, cols


@pytest.fixture
def case(request):
    return Drawn(3)


def copied(side):
    return side[0], side[1].clone(), side[2]


def learn(g, p, q, **options):
    return TorchLearner().learn(g, p, q, options)


def bias_of(g, p, q):
    """Relative bias in double, from the definition."""
    p, q = (dense_of(i.long(), v.double(), cols) for i, v, cols in (p, q))
    g = g.double()
    return ((p @ p.t() @ g @ q @ q.t() - g).norm() / g.norm()).item()


# ---- Learning ------------------------------------------------------------------------------------


def test_learning_lowers_the_bias_on_unseen_gradients(case):
    before = bias_of(case.unseen, case.p, case.q)
    _, _, steps = learn(case.g, case.p, case.q, max_steps=100)
    after = bias_of(case.unseen, case.p, case.q)
    assert steps == 100
    assert after < 0.5 * before
    assert after < 0.75  # The strong directions are common to both gradients.


def test_the_outcome_tells_the_true_biases(case):
    true = bias_of(case.g, case.p, case.q)
    before, after, _ = learn(case.g, case.p, case.q, max_steps=40)
    assert before == pytest.approx(true, rel=1e-4)
    assert after == pytest.approx(bias_of(case.g, case.p, case.q), abs=1e-4)


def test_learning_stops_at_the_threshold(case):
    _, after, steps = learn(case.g, case.p, case.q, threshold=1.0, max_steps=1000)
    assert after <= 1.0
    assert 0 < steps < 200


def test_zero_steps_and_a_threshold_already_met_leave_the_values(case):
    before = case.p[1].clone(), case.q[1].clone()
    assert learn(case.g, case.p, case.q, max_steps=0)[2] == 0
    assert learn(case.g, case.p, case.q, threshold=100.0)[2] == 0
    assert torch.equal(case.p[1], before[0])
    assert torch.equal(case.q[1], before[1])


def test_the_best_values_met_are_kept(case):
    before, after, _ = learn(case.g, case.p, case.q, max_steps=30, learning_rate=5.0)
    assert after <= before
    assert after == pytest.approx(bias_of(case.g, case.p, case.q), rel=1e-3)


def test_equal_calls_give_equal_bits(case):
    twins = copied(case.p), copied(case.q)
    learn(case.g, case.p, case.q, max_steps=20)
    learn(case.g, *twins, max_steps=20)
    assert torch.equal(case.p[1], twins[0][1])
    assert torch.equal(case.q[1], twins[1][1])


def test_the_regulariser_shrinks_the_values(case):
    free = copied(case.p), copied(case.q)
    learn(case.g, *free, max_steps=60, beta=0.0)
    learn(case.g, case.p, case.q, max_steps=60, beta=1.0)
    sums = [sum(side[1].double().square().sum() for side in pair) for pair in
            ((case.p, case.q), free)]  # fmt: skip
    assert sums[0] < sums[1]


def test_strided_and_sixteen_bit_gradients_are_read(case):
    twins = copied(case.p), copied(case.q)
    padded = torch.full((M, N + 5), float("nan"))
    padded[:, :N] = case.g
    learn(padded[:, :N], *twins, max_steps=3)
    learn(case.g, case.p, case.q, max_steps=3)
    assert torch.equal(case.p[1], twins[0][1])
    before, _, _ = learn(case.g.bfloat16(), case.p, case.q, max_steps=0)
    assert before == pytest.approx(bias_of(case.g, case.p, case.q), abs=0.02)


@pytest.mark.parametrize(("rows", "cols"), [(1, 37), (37, 1), (67, 41)])
def test_odd_shapes_learn_too(case, rows, cols):
    g = case.drawn(rows, cols)
    p, q = case.sparse(rows, (rows + 1) // 2, 3), case.sparse(cols, (cols + 1) // 2, 3)
    before = bias_of(g, p, q)
    learn(g, p, q, max_steps=50)
    assert bias_of(g, p, q) <= before


def test_a_gradient_whose_squares_are_no_f32_leaves_the_values(case):
    before = case.p[1].clone()
    bias, _, steps = learn(case.g * 1e-24, case.p, case.q, max_steps=3)
    assert not math.isfinite(bias)
    assert steps == 0
    assert torch.equal(case.p[1], before)


# ---- Precision -----------------------------------------------------------------------------------


@pytest.fixture
def precision():
    """The setting of f32 products on the host; every level of it is as it was afterwards."""
    levels = (torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul)
    yield torch.backends.mkldnn.matmul
    for level in levels:
        level.fp32_precision = "none"


def test_learning_is_in_f32_whatever_the_user_allows(case, precision):
    twins = copied(case.p), copied(case.q)
    learn(case.g, *twins, max_steps=5)
    precision.fp32_precision = "bf16"
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
        learn(case.g, case.p, case.q, max_steps=5)
    assert precision.fp32_precision == "bf16"
    assert torch.equal(case.p[1], twins[0][1])
    assert not case.p[1].requires_grad


def test_a_setting_that_is_inherited_stays_so(case, precision):
    torch.backends.fp32_precision = "tf32"
    assert precision.fp32_precision == "tf32"
    learn(case.g, case.p, case.q, max_steps=1)
    torch.backends.fp32_precision = "ieee"
    assert precision.fp32_precision == "ieee"


def test_the_last_of_several_learners_restores_the_setting(case, precision):
    precision.fp32_precision = "bf16"
    held = [learner._ON_HOST.held() for _ in range(3)]
    seen = []
    for block in held:
        block.__enter__()
        seen.append(precision.fp32_precision)
    for block in held:
        seen.append(precision.fp32_precision)
        block.__exit__(None, None, None)
    assert seen == ["ieee"] * 6
    assert precision.fp32_precision == "bf16"


def test_an_error_or_an_interrupt_restores_the_setting(case, precision, monkeypatch):
    precision.fp32_precision = "bf16"
    with pytest.raises(RuntimeError):
        learn(case.g[:, :3], case.p, case.q)
    assert precision.fp32_precision == "bf16"

    begin = learner._FullPrecision._begin

    def interrupted(self):
        begin(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(learner._FullPrecision, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn(case.g, case.p, case.q)
    assert precision.fp32_precision == "bf16"


# ---- Leading directions --------------------------------------------------------------------------


def find(g, columns_of_p, columns_of_q, seed=1):
    p = torch.full((len(g), columns_of_p), float("nan")) if columns_of_p else None
    q = torch.full((g.shape[1], columns_of_q), float("nan")) if columns_of_q else None
    TorchLearner().leading_directions(g, p, q, seed)
    return p, q


def energies(p, q, g):
    return (p.double().t() @ g.double()).norm() ** 2, (g.double() @ q.double()).norm() ** 2


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_directions_hold_almost_all_that_the_best_ones_hold(case, noise):
    g = case.gradient(noise)
    kept = g.clone()
    p, q = find(g, 12, 12)
    assert torch.equal(g, kept)
    left, _, right = torch.linalg.svd(g.double(), full_matrices=False)
    found, best = energies(p, q, g), energies(left[:, :12], right.t()[:, :12], g)
    assert found[0] > 0.99 * best[0]
    assert found[1] > 0.99 * best[1]
    for x in (p.double(), q.double()):
        torch.testing.assert_close(x.t() @ x, torch.eye(12).double(), rtol=0, atol=1e-5)


def test_directions_come_in_order_and_repeat_themselves(case):
    p, q = find(case.g, 12, 12)
    again_p, again_q = find(case.g, 12, 12)
    assert torch.equal(p, again_p)
    assert torch.equal(q, again_q)
    left = torch.linalg.svd(case.g.double()).U[:, :4]
    first, best = ((x.double().t() @ case.g.double()).norm() ** 2 for x in (p[:, :4], left))
    assert first > 0.999 * best


def test_either_side_may_be_left_out(case):
    p, none = find(case.g, 5, 0)
    assert none is None
    none, q = find(case.g, 0, 5)
    assert none is None
    assert p.isfinite().all()
    assert q.isfinite().all()


def test_tiny_gradients_keep_their_directions(case):
    found, tiny = (energies(*find(g, 4, 4), case.g) for g in (case.g, case.g * 1e-20))
    assert tiny[0].item() == pytest.approx(found[0].item(), rel=1e-3)


def test_directions_are_written_into_rows_that_are_apart(case):
    room = torch.full((M, 12), float("nan"))
    TorchLearner().leading_directions(case.g.half(), room[:, :5], None, 1)
    assert room[:, :5].isfinite().all()
    assert room[:, 5:].isnan().all()


@pytest.mark.parametrize("rank", [1, 4])
def test_a_gradient_of_lower_rank_has_directions(case, rank):
    g = torch.zeros(M, N)
    g[5 : 5 + rank] = case.drawn(rank, N)
    p, q = find(g, 12, 12)
    for x in (p.double(), q.double()):
        torch.testing.assert_close(x.t() @ x, torch.eye(12).double(), rtol=0, atol=1e-5)
    assert energies(p, q, g)[0].item() == pytest.approx(g.double().norm().item() ** 2, rel=1e-5)


def test_factors_of_16_bits_take_the_place_of_the_gradient(case, monkeypatch):
    monkeypatch.setattr(learner, "_multiplies_bf16_faster", lambda: True)
    HostOps().count_allocations()
    g = case.drawn(2048, 1024)
    _host_allocator.reset_peak()
    before = _host_allocator.allocated_bytes()
    p, _ = find(g, 1, 0)
    more = _host_allocator.peak_bytes() - before
    assert more < 6.2 * g.numel()  # The copy in f32 while it becomes one in bf16, and small things.
    assert p.isfinite().all()
