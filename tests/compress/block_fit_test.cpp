// Fitted block projectors: orthonormal, ordered, and the best for their shape.
#include "compress/block_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/compress/codec_fixture.h"
#include "tests/compress/exact_learner.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

struct OwnedLayout {
  BlockRows rows;
  std::vector<float> value;

  OwnedLayout(std::int64_t size, std::int64_t block, double ratio)
      : rows(block_layout(size, block, ratio)),
        value(static_cast<std::size_t>(size * rows.kept), -1e30F) {
    rows.value = value.data();
  }
  MatrixF64 matrix() const { return dense(rows); }
};

// |P^T G|_F^2, the energy that a projection of the rows keeps.
double energy(const MatrixF64& p, const MatrixF64& g) {
  double sum = 0;
  for (const double x : product(transposed(p), g).v) sum += x * x;
  return sum;
}

MatrixF64 range_of_rows(const MatrixF64& g, std::int64_t first, std::int64_t count) {
  MatrixF64 out(count, g.cols);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < g.cols; ++j) out(i, j) = g(first + i, j);
  }
  return out;
}

TEST(BlockPcaTest, ColumnsAreOrthonormalOnOddShapes) {
  Rng rng(5);
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{67, 41}, {5, 70}, {1, 1}}) {
    Matrix g = rng.matrix(m, n);
    OwnedLayout p(m, 16, 0.3), q(n, 16, 0.3);
    fit_block_pca(any_matrix(g), Side::kRows, p.rows, p.value);
    fit_block_pca(any_matrix(g), Side::kColumns, q.rows, q.value);
    for (const MatrixF64& x : {p.matrix(), q.matrix()}) {
      EXPECT_TRUE(all_near(product(transposed(x), x), dense_identity(x.cols), {.abs = 1e-6}));
    }
  }
}

TEST(BlockPcaTest, EachGroupKeepsAsMuchEnergyAsItsBestDirections) {
  Rng rng(6);
  Matrix g = low_rank_gradient(rng, rng.matrix(48, 5), rng.matrix(31, 5), 0.2);
  OwnedLayout p(48, 16, 0.25);
  fit_block_pca(any_matrix(g), Side::kRows, p.rows, p.value);
  const MatrixF64 dense_p = p.matrix();
  for (std::int64_t group = 0; group < 3; ++group) {
    const MatrixF64 rows = range_of_rows(as_f64(g), 16 * group, 16);
    Matrix group_g(16, 31), best(16, 4), unused;
    for (std::size_t i = 0; i < rows.v.size(); ++i) group_g.v[i] = static_cast<float>(rows.v[i]);
    ExactLearner().leading_directions(any_matrix(group_g), best.view(), unused.view(), 0,
                                      StreamRef::host());
    MatrixF64 mine(16, 4);
    for (std::int64_t i = 0; i < 16; ++i) {
      for (std::int64_t c = 0; c < 4; ++c) mine(i, c) = dense_p(16 * group + i, 4 * group + c);
    }
    EXPECT_NEAR(energy(mine, rows), energy(as_f64(best), rows), 1e-5 * energy(as_f64(best), rows));
  }
}

TEST(BlockPcaTest, EqualGradientsGiveEqualBits) {
  Matrix g = Rng(7).matrix(40, 24);
  OwnedLayout first(40, 16, 0.25), second(40, 16, 0.25);
  fit_block_pca(any_matrix(g), Side::kRows, first.rows, first.value);
  fit_block_pca(any_matrix(g), Side::kRows, second.rows, second.value);
  EXPECT_EQ(first.value, second.value);
}

TEST(TopColumnsTest, PicksTheColumnsWithTheLargestNorms) {
  Matrix g(3, 5);
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) g(i, j) = j == 3 ? 9.0F : j == 1 ? -5.0F : 1.0F;
  }
  OwnedLayout q(5, 5, 0.4);
  fit_top_columns(any_matrix(g), q.rows, q.value);
  MatrixF64 expected(5, 2);
  expected(3, 0) = expected(1, 1) = 1;
  EXPECT_EQ(q.matrix(), expected);
}

TEST(UnitBlocksTest, AreTheIdentity) {
  OwnedLayout p(67, 32, 1.0);
  fill_unit_blocks(p.rows, p.value);
  EXPECT_EQ(p.matrix(), dense_identity(67));
}

TEST(BlockFitTest, WrongSizesAreNamed) {
  Matrix g(4, 6);
  OwnedLayout q(6, 6, 0.5);
  EXPECT_THAT([&] { fit_block_pca(any_matrix(g), Side::kRows, q.rows, q.value); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("expected 4 rows")));
}

}  // namespace
}  // namespace sluiceway::test
