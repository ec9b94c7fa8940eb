// The objective of learning and its analytic gradient, in double, against definitions.
#include "compress/learner_objective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/projector_fixture.h"

namespace sluiceway::test {
namespace {

at::Tensor tensor(const MatrixF64& x) {
  return at::from_blob(const_cast<double*>(x.v.data()), {x.rows, x.cols},
                       at::TensorOptions().dtype(at::kDouble))
      .clone();
}

at::Tensor index_of(const OwnedSparseRows& x) {
  return at::from_blob(const_cast<std::int32_t*>(x.index.data()), {x.rows, x.nnz},
                       at::TensorOptions().dtype(at::kInt))
      .to(at::kLong);
}

at::Tensor value_of(const OwnedSparseRows& x) {
  return at::from_blob(const_cast<float*>(x.value.data()), {x.rows, x.nnz},
                       at::TensorOptions().dtype(at::kFloat))
      .to(at::kDouble);
}

// Returns the dense projector with these values.
at::Tensor dense_of(const OwnedSparseRows& x, const at::Tensor& value) {
  return at::zeros({x.rows, x.cols}, value.options()).scatter(1, index_of(x), value);
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= tolerance;
}

class LearnerObjectiveTest : public testing::Test {
 protected:
  static constexpr double kBeta = 0.3;

  double defined(const at::Tensor& pv, const at::Tensor& qv) const {
    const at::Tensor pd = dense_of(p_rows, pv), qd = dense_of(q_rows, qv);
    const at::Tensor r = pd.mm(pd.t()).mm(g).mm(qd).mm(qd.t()) - g;
    return (r.norm() / g.norm() + kBeta * (pd.norm() + qd.norm())).item<double>();
  }

  // Central differences of the definition, for every value of `x`.
  template <typename F>
  at::Tensor numeric_gradient(const at::Tensor& x, F f) const {
    constexpr double kStep = 1e-6;
    at::Tensor out = at::zeros_like(x);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const at::Tensor up = x.clone(), down = x.clone();
      up.view(-1)[i] += kStep;
      down.view(-1)[i] -= kStep;
      out.view(-1)[i] = (f(up) - f(down)) / (2 * kStep);
    }
    return out;
  }

  Rng rng{11};
  OwnedSparseRows p_rows = random_sparse(rng, 23, 7, 3), q_rows = random_sparse(rng, 17, 5, 2);
  at::Tensor g = tensor(as_f64(rng.matrix(23, 17)));
  at::Tensor p_value = value_of(p_rows), q_value = value_of(q_rows);
  SparsePattern p{index_of(p_rows), 7}, q{index_of(q_rows), 5};
  BiasObjective objective{g, p, q, kBeta};
};

TEST_F(LearnerObjectiveTest, ProductsMatchTheDenseProjector) {
  const at::Tensor dense = dense_of(p_rows, p_value);
  const at::Tensor x = tensor(as_f64(rng.matrix(7, 4))), y = tensor(as_f64(rng.matrix(23, 4)));
  EXPECT_TRUE(near(p.times(p_value, x), dense.mm(x), 1e-12));
  EXPECT_TRUE(near(p.transposed_times(p_value, y), dense.t().mm(y), 1e-12));
  EXPECT_TRUE(near(p.gram(p_value), dense.t().mm(dense), 1e-12));
  EXPECT_TRUE(near(p.sampled_product(y, x), y.mm(x.t()).gather(1, index_of(p_rows)), 1e-12));
}

TEST_F(LearnerObjectiveTest, ColumnsThatNoRowUsesCountAsZero) {
  const at::Tensor index = at::zeros({6, 1}, at::kLong);
  const at::Tensor value = at::ones({6, 1}, at::kDouble);
  const at::Tensor sums =
      SparsePattern(index, 4).transposed_times(value, at::ones({6, 2}, at::kDouble));
  EXPECT_TRUE(near(sums.select(0, 0), at::full({2}, 6.0, at::kDouble), 0));
  EXPECT_TRUE(near(sums.slice(0, 1), at::zeros({3, 2}, at::kDouble), 0));
}

TEST_F(LearnerObjectiveTest, ValueMatchesItsDefinition) {
  const auto now = objective.evaluate(p_value, q_value);
  EXPECT_NEAR(now.objective, defined(p_value, q_value), 1e-12);
  EXPECT_NEAR(now.bias, now.objective - kBeta * (p_value.norm() + q_value.norm()).item<double>(),
              1e-12);
}

TEST_F(LearnerObjectiveTest, GradientInPMatchesFiniteDifferences) {
  const auto numeric =
      numeric_gradient(p_value, [&](const at::Tensor& x) { return defined(x, q_value); });
  EXPECT_TRUE(near(objective.evaluate(p_value, q_value).dp, numeric, 1e-8));
}

TEST_F(LearnerObjectiveTest, GradientInQMatchesFiniteDifferences) {
  const auto numeric =
      numeric_gradient(q_value, [&](const at::Tensor& x) { return defined(p_value, x); });
  EXPECT_TRUE(near(objective.evaluate(p_value, q_value).dq, numeric, 1e-8));
}

TEST_F(LearnerObjectiveTest, GradientMatchesThePapersDenseFormulas) {
  const BiasObjective plain(g, p, q, 0);
  const at::Tensor pd = dense_of(p_rows, p_value), qd = dense_of(q_rows, q_value);
  const at::Tensor r = pd.mm(pd.t()).mm(g).mm(qd).mm(qd.t()) - g;
  const at::Tensor dp = r.mm(qd).mm(qd.t().mm(g.t()).mm(pd)) + g.mm(qd).mm(qd.t().mm(r.t()).mm(pd));
  const at::Tensor dq = r.t().mm(pd).mm(pd.t().mm(g).mm(qd)) + g.t().mm(pd).mm(pd.t().mm(r).mm(qd));
  const at::Tensor scale = 1 / (r.norm() * g.norm());
  const auto now = plain.evaluate(p_value, q_value);
  EXPECT_TRUE(near(now.dp, dp.gather(1, index_of(p_rows)) * scale, 1e-12));
  EXPECT_TRUE(near(now.dq, dq.gather(1, index_of(q_rows)) * scale, 1e-12));
}

TEST_F(LearnerObjectiveTest, LossScaleChangesNothing) {
  const auto now = objective.evaluate(p_value, q_value);
  const auto scaled = BiasObjective(g * 65536, p, q, kBeta).evaluate(p_value, q_value);
  EXPECT_NEAR(scaled.objective, now.objective, 1e-12);
  EXPECT_TRUE(near(scaled.dp, now.dp, 1e-12));
}

TEST_F(LearnerObjectiveTest, LosslessPairHasNoBiasAndAFiniteGradient) {
  const at::Tensor index = at::arange(5, at::kLong).unsqueeze(1);  // The identity.
  const at::Tensor one = at::ones({5, 1}, at::kDouble);
  const SparsePattern identity(index, 5);
  const auto now =
      BiasObjective(tensor(as_f64(rng.matrix(5, 5))), identity, identity, 0).evaluate(one, one);
  EXPECT_NEAR(now.bias, 0, 1e-7);
  EXPECT_TRUE(now.dp.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace sluiceway::test
