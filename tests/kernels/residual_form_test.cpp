// residual_form() against double precision and against decompress(), on every backend.
#include "kernels/residual_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class ResidualFormTest : public BackendTest {
 protected:
  Rng rng{20261123};

  template <typename T, class Projector>
  void check(const Projector& p, const Projector& q) {
    const std::int64_t m = p.view().rows, n = q.view().rows;
    SCOPED_TRACE(testing::Message() << m << "x" << n);
    const BasicMatrix<T> g = rounded_to<T>(rng.matrix(m, n));
    Matrix s = rng.matrix(p.view().cols, q.view().cols);
    PaddedMatrix<T> formed(g), plain(g);
    GuardedArray<float> rows(static_cast<std::size_t>(m), 1), cols(static_cast<std::size_t>(n), 3);
    std::vector<float> scratch(
        static_cast<std::size_t>(decompress_scratch_elems(p.view(), q.view())), -1e30F);
    on_backend::residual_form(formed.any(), s.view(), p.view(), q.view(),
                              {{rows.span(), cols.span()}}, scratch);
    on_backend::decompress(plain.any(), {}, any_matrix(s), p.view(), q.view(), {.alpha = -1.0F},
                           scratch);
    EXPECT_EQ(formed.matrix(), plain.matrix());
    const MatrixF64 r = as_f64(plain.matrix());
    std::vector<double> row_means(static_cast<std::size_t>(m)),
        col_means(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double square = r(i, j) * r(i, j);
        row_means[static_cast<std::size_t>(i)] += square / static_cast<double>(n);
        col_means[static_cast<std::size_t>(j)] += square / static_cast<double>(m);
      }
    }
    EXPECT_TRUE(all_near(rows.span(), row_means, {.eps = 84}));  // 1e-5
    EXPECT_TRUE(all_near(cols.span(), col_means, {.eps = 84}));
    EXPECT_TRUE(formed.padding_intact() && rows.guards_intact() && cols.guards_intact());
  }
};

TEST_P(ResidualFormTest, IsDecompressAndItsMeansForBlocks) {
  for (const auto& [m, n] :
       {std::pair<std::int64_t, std::int64_t>{67, 41}, {5, 307}, {1, 1}, {523, 3}, {8, 256}}) {
    for (const std::int64_t block : {32, 1024}) {  // 1024: one group a side, as svd has.
      const std::int64_t rows = std::min(block, m), cols = std::min(block, n);
      const OwnedBlockRows p = random_blocks(rng, m, rows, (rows + 3) / 4);
      const OwnedBlockRows q = random_blocks(rng, n, cols, (cols + 3) / 4);
      check<float>(p, q);
      check<bf16>(p, q);
      check<f16>(p, q);
    }
  }
}

TEST_P(ResidualFormTest, IsDecompressAndItsMeansForSparseProjectors) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{67, 41}, {17, 563}}) {
    const OwnedSparseRows p = random_sparse(rng, m, 11, 3), q = random_sparse(rng, n, 13, 2);
    check<float>(p, q);
    check<bf16>(p, q);
  }
}

TEST_P(ResidualFormTest, WhatIsNotFiniteIsSeenInTheMeansOfItsRowAndColumn) {
  const std::int64_t m = 33, n = 70;
  const OwnedBlockRows p = random_blocks(rng, m, 8, 2), q = random_blocks(rng, n, 8, 2);
  Matrix g = rng.matrix(m, n), s(p.view().cols, q.view().cols);
  g(12, 69) = std::numeric_limits<float>::infinity();
  std::vector<float> rows(m), cols(n);
  std::vector<float> scratch(
      static_cast<std::size_t>(decompress_scratch_elems(p.view(), q.view())));
  on_backend::residual_form(any_matrix(g), s.view(), p.view(), q.view(), {{rows, cols}}, scratch);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(std::isfinite(rows[i]), i != 12);
  for (std::size_t j = 0; j < cols.size(); ++j) EXPECT_EQ(std::isfinite(cols[j]), j != 69);
}

TEST_P(ResidualFormTest, RejectsWrongShapesAndTouchesNothing) {
  const OwnedBlockRows p = random_blocks(rng, 16, 8, 2), q = random_blocks(rng, 24, 8, 2);
  Matrix g = rng.matrix(16, 24), s(4, 5), right(4, 6);
  const Matrix before = g;
  std::vector<float> rows(16), cols(24), scratch(4096);
  EXPECT_THAT(
      [&] {
        on_backend::residual_form(any_matrix(g), s.view(), p.view(), q.view(), {{rows, cols}},
                                  scratch);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("s is 4x5, expected 4x6")));
  EXPECT_THAT(
      [&] {
        on_backend::residual_form(any_matrix(g), right.view(), p.view(), q.view(), {{cols, cols}},
                                  scratch);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("rows has 24 elements, expected 16")));
  EXPECT_THAT(
      [&] {
        on_backend::residual_form(any_matrix(g), right.view(), p.view(), q.view(), {{rows, cols}},
                                  {});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("scratch has 0 elements")));
  EXPECT_EQ(g, before);
}

INSTANTIATE_TEST_SUITE_P(Kernels, ResidualFormTest,
                         testing::ValuesIn(built_backends("residual_form")), backend_name);

}  // namespace
}  // namespace sluiceway::test
