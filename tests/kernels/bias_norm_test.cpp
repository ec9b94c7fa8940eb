// bias_norm() against a dense double-precision reference, on every backend of this build.
#include "kernels/bias_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

BiasNorm bias_with(const OwnedSparseRows& p, const OwnedSparseRows& q, const AnyMatrix& g) {
  GuardedArray<float> scratch(static_cast<std::size_t>(bias_norm_scratch_elems(p.view(), q.view())),
                              1);
  const BiasNorm out = on_backend::bias_norm(g, p.view(), q.view(), q.columns(), scratch.span());
  EXPECT_TRUE(scratch.guards_intact());
  return out;
}

BiasNorm bias_with(const OwnedBlockRows& p, const OwnedBlockRows& q, const AnyMatrix& g) {
  GuardedArray<float> scratch(static_cast<std::size_t>(bias_norm_scratch_elems(p.view(), q.view())),
                              1);
  const BiasNorm out = on_backend::bias_norm(g, p.view(), q.view(), scratch.span());
  EXPECT_TRUE(scratch.guards_intact());
  return out;
}

class BiasNormTest : public BackendTest {
 protected:
  Rng rng{20240611};

  template <typename T, class Owned>
  void expect_matches_reference(const Owned& p, const Owned& q) {
    const BasicMatrix<T> g = rounded_to<T>(rng.matrix(p.view().rows, q.view().rows));
    PaddedMatrix<T> padded(g);
    const BiasNorm actual = bias_with(p, q, padded.any());
    const BiasNorm expected = reference_bias(as_f64(g), dense(p.view()), dense(q.view()));
    EXPECT_NEAR(actual.bias_sq, expected.bias_sq, 1e-10 + 1e-5 * expected.bias_sq);
    EXPECT_NEAR(actual.grad_sq, expected.grad_sq, 1e-13 * expected.grad_sq);
    EXPECT_EQ(padded.matrix(), g);
  }
  template <class Owned>
  void check_all_types(const Owned& p, const Owned& q) {
    expect_matches_reference<float>(p, q);
    expect_matches_reference<bf16>(p, q);
    expect_matches_reference<f16>(p, q);
  }
};

TEST_P(BiasNormTest, SparseMatchesDenseReferenceOnPrimeShapes) {
  check_all_types(random_sparse(rng, 67, 23, 3), random_sparse(rng, 41, 17, 3));
  check_all_types(random_sparse(rng, 5, 3, 2), random_sparse(rng, 307, 101, 2));
  check_all_types(random_sparse(rng, 1, 1, 1), random_sparse(rng, 1, 1, 1));
}

TEST_P(BiasNormTest, BlocksMatchDenseReferenceOnPrimeShapes) {
  check_all_types(random_blocks(rng, 67, 32, 8), random_blocks(rng, 41, 32, 8));
  check_all_types(random_blocks(rng, 53, 7, 3), random_blocks(rng, 601, 29, 29));
}

TEST_P(BiasNormTest, FullUnitProjectorHasNoBias) {
  OwnedSparseRows p = random_sparse(rng, 19, 19, 1), q = random_sparse(rng, 31, 31, 1);
  for (OwnedSparseRows* side : {&p, &q}) {
    for (std::size_t i = 0; i < side->index.size(); ++i)
      side->index[i] = static_cast<std::int32_t>(i);
    side->value.assign(side->value.size(), 1.0F);
    sparse_columns(side->view(), side->offset, side->row, side->column_value);
  }
  Matrix g = rng.matrix(19, 31);
  EXPECT_EQ(bias_with(p, q, any_matrix(g)).bias_sq, 0.0);
}

TEST_P(BiasNormTest, SquaresBeyondTheRangeOfFloatStayFinite) {
  Matrix g(17, 13);
  g.v.assign(g.v.size(), 1e30F);
  const OwnedSparseRows p = random_sparse(rng, 17, 5, 2), q = random_sparse(rng, 13, 5, 2);
  const BiasNorm out = bias_with(p, q, any_matrix(g));
  EXPECT_NEAR(out.grad_sq / 1e60, 17 * 13, 1e-3);
  EXPECT_TRUE(std::isfinite(out.bias_sq));
}

TEST_P(BiasNormTest, EmptyGradientHasNoNorm) {
  Matrix g(0, 13);
  const BiasNorm out =
      bias_with(random_sparse(rng, 0, 5, 2), random_sparse(rng, 13, 5, 2), any_matrix(g));
  EXPECT_EQ(out.bias_sq, 0.0);
  EXPECT_EQ(out.grad_sq, 0.0);
}

TEST_P(BiasNormTest, RejectsWrongShapes) {
  const OwnedSparseRows p = random_sparse(rng, 67, 23, 3), q = random_sparse(rng, 41, 17, 3);
  Matrix g = rng.matrix(66, 41), right = rng.matrix(67, 41);
  EXPECT_THAT([&] { bias_with(p, q, any_matrix(g)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("g is 66x41, expected 67x41")));
  std::vector<float> scratch(10);
  EXPECT_THAT(
      [&] { on_backend::bias_norm(any_matrix(right), p.view(), q.view(), q.columns(), scratch); },
      ThrowsMessage<InvalidArgument>(HasSubstr("scratch has 10 elements")));
  EXPECT_THAT(
      [&] { on_backend::bias_norm(any_matrix(right), p.view(), q.view(), p.columns(), scratch); },
      ThrowsMessage<InvalidArgument>(HasSubstr("q_columns is 67x23, expected 41x17")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, BiasNormTest, testing::ValuesIn(built_backends("bias_norm")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
