"""The objective of learning and its analytic gradient, in double, against definitions."""

from __future__ import annotations

import pytest
import torch
from sluiceway.optim.subspace.learner import BiasObjective, SparsePattern

BETA = 0.3


def random_pattern(rows, cols, nnz, generator):
    """Distinct columns of each row's entries."""
    chosen = [torch.randperm(cols, generator=generator)[:nnz] for _ in range(rows)]
    return torch.stack(chosen).sort(dim=1).values


def dense_of(index, value, cols):
    return value.new_zeros(len(index), cols).scatter(1, index, value)


class Case:
    """A gradient of 23 x 17, and projectors to 7 and 5 columns."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.drawn = drawn
        self.g = drawn(23, 17)
        self.p_index = random_pattern(23, 7, 3, generator)
        self.q_index = random_pattern(17, 5, 2, generator)
        self.p_value, self.q_value = drawn(23, 3), drawn(17, 2)
        self.p, self.q = SparsePattern(self.p_index, 7), SparsePattern(self.q_index, 5)
        self.objective = BiasObjective(self.g, self.p, self.q, BETA)

    def dense(self, p_value, q_value):
        return dense_of(self.p_index, p_value, 7), dense_of(self.q_index, q_value, 5)

    def defined(self, p_value, q_value):
        p, q = self.dense(p_value, q_value)
        rest = p @ p.t() @ self.g @ q @ q.t() - self.g
        return rest.norm() / self.g.norm() + BETA * (p.norm() + q.norm())


@pytest.fixture(params=[11, 12, 13])
def case(request):
    return Case(request.param)


def near(a, b, atol):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def numeric_gradient(x, function):
    """Central differences, for every value of `x`."""
    step, found = 1e-6, torch.zeros_like(x)
    for i in range(x.numel()):
        up, down = x.clone(), x.clone()
        up.view(-1)[i] += step
        down.view(-1)[i] -= step
        found.view(-1)[i] = (function(up) - function(down)) / (2 * step)
    return found


def test_products_match_the_dense_projector(case):
    dense = dense_of(case.p_index, case.p_value, 7)
    x, y = case.drawn(7, 4), case.drawn(23, 4)
    near(case.p.times(case.p_value, x), dense @ x, 1e-12)
    near(case.p.transposed_times(case.p_value, y), dense.t() @ y, 1e-12)
    near(case.p.gram(case.p_value), dense.t() @ dense, 1e-12)
    near(case.p.sampled_product(y, x), (y @ x.t()).gather(1, case.p_index), 1e-12)


def test_columns_that_no_row_uses_count_as_zero():
    pattern = SparsePattern(torch.zeros(6, 1, dtype=torch.int64), 4)
    ones = torch.ones(6, 2, dtype=torch.float64)
    sums = pattern.transposed_times(ones[:, :1], ones)
    assert sums[0].tolist() == [6, 6]
    assert (sums[1:] == 0).all()


def test_value_matches_its_definition(case):
    now = case.objective.evaluate(case.p_value, case.q_value)
    assert now.objective == pytest.approx(
        case.defined(case.p_value, case.q_value).item(), abs=1e-12
    )
    norms = (case.p_value.norm() + case.q_value.norm()).item()
    assert now.bias == pytest.approx(now.objective - BETA * norms, abs=1e-12)


def test_gradient_matches_finite_differences(case):
    now = case.objective.evaluate(case.p_value, case.q_value)
    of_p = numeric_gradient(case.p_value, lambda x: case.defined(x, case.q_value))
    of_q = numeric_gradient(case.q_value, lambda x: case.defined(case.p_value, x))
    near(now.dp, of_p, 1e-8)
    near(now.dq, of_q, 1e-8)


def test_gradient_matches_the_papers_dense_formulas(case):
    p, q = case.dense(case.p_value, case.q_value)
    g = case.g
    rest = p @ p.t() @ g @ q @ q.t() - g
    dp = rest @ q @ (q.t() @ g.t() @ p) + g @ q @ (q.t() @ rest.t() @ p)
    dq = rest.t() @ p @ (p.t() @ g @ q) + g.t() @ p @ (p.t() @ rest @ q)
    scale = 1 / (rest.norm() * g.norm())
    now = BiasObjective(g, case.p, case.q, 0).evaluate(case.p_value, case.q_value)
    near(now.dp, dp.gather(1, case.p_index) * scale, 1e-12)
    near(now.dq, dq.gather(1, case.q_index) * scale, 1e-12)


def test_a_loss_scale_changes_nothing(case):
    now = case.objective.evaluate(case.p_value, case.q_value)
    scaled = BiasObjective(case.g * 65536, case.p, case.q, BETA)
    found = scaled.evaluate(case.p_value, case.q_value)
    assert found.objective == pytest.approx(now.objective, abs=1e-12)
    near(found.dp, now.dp, 1e-12)


def test_a_lossless_pair_has_no_bias_and_a_finite_gradient(case):
    identity = SparsePattern(torch.arange(5).unsqueeze(1), 5)
    one = torch.ones(5, 1, dtype=torch.float64)
    now = BiasObjective(case.drawn(5, 5), identity, identity, 0).evaluate(one, one)
    assert now.bias == pytest.approx(0, abs=1e-7)
    assert now.dp.isfinite().all()
