// project_rows() against a dense double-precision reference, on every backend of this build.
#include "kernels/compress_linear.h"

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

// Calls with exactly the promised scratch, between guards.
template <class Owned>
void project_with(const Owned& p, const AnyMatrix& w, const AnyMatrix& g,
                  std::size_t scratch_offset = 1) {
  GuardedArray<float> scratch(static_cast<std::size_t>(project_scratch_elems(p.view())),
                              scratch_offset);
  on_backend::project_rows(w, g, p.view(), scratch.span());
  EXPECT_TRUE(scratch.guards_intact());
}

// The output starts as poison, so that a forgotten element shows.
template <typename To, typename T>
BasicMatrix<To> poisoned(const BasicMatrix<T>& shape_of) {
  BasicMatrix<To> out(shape_of.rows, shape_of.cols);
  out.v.assign(out.v.size(), from_float<To>(std::numeric_limits<float>::quiet_NaN()));
  return out;
}

template <typename T, typename To, class Owned>
void expect_matches_reference(Rng& rng, const Owned& p, std::int64_t rows) {
  const BasicMatrix<T> g = rounded_to<T>(rng.matrix(rows, p.view().rows));
  const MatrixF64 expected = product(as_f64(g), dense(p.view()));
  PaddedMatrix<T> g_padded(g);
  PaddedMatrix<To> w(poisoned<To>(expected));
  project_with(p, w.any(), g_padded.any());
  const double eps = std::is_same_v<To, float> ? 8 : 0.51;  // 16 bits: rounded once.
  EXPECT_TRUE(all_near(w.matrix(), expected, {.abs = 2e-5, .eps = eps}))
      << rows << "x" << p.view().rows << " to " << p.view().cols;
  EXPECT_TRUE(w.padding_intact());
  EXPECT_TRUE(g_padded.padding_intact());
  EXPECT_EQ(g_padded.matrix(), g);
}

class ProjectRowsTest : public BackendTest {
 protected:
  Rng rng{20261122};

  template <class Owned>
  void check_all_types(const Owned& p, std::int64_t rows) {
    expect_matches_reference<float, float>(rng, p, rows);
    expect_matches_reference<bf16, float>(rng, p, rows);
    expect_matches_reference<f16, float>(rng, p, rows);
    expect_matches_reference<bf16, bf16>(rng, p, rows);
    expect_matches_reference<f16, f16>(rng, p, rows);
    expect_matches_reference<float, bf16>(rng, p, rows);
    expect_matches_reference<bf16, f16>(rng, p, rows);
  }
};

TEST_P(ProjectRowsTest, SparseMatchesDenseReferenceOnPrimeShapes) {
  for (const std::int64_t rows : {1, 13, 16, 47}) {
    check_all_types(random_sparse(rng, 67, 23, 3), rows);
    check_all_types(random_sparse(rng, 5, 3, 2), rows);
    check_all_types(random_sparse(rng, 64, 32, 4), rows);
  }
}

TEST_P(ProjectRowsTest, BlocksMatchDenseReferenceOnPrimeShapes) {
  for (const std::int64_t rows : {1, 13, 16, 47}) {
    check_all_types(random_blocks(rng, 67, 32, 8), rows);
    check_all_types(random_blocks(rng, 563, 32, 16), rows);
    check_all_types(random_blocks(rng, 128, 32, 16), rows);
    check_all_types(random_blocks(rng, 53, 7, 3), rows);
    check_all_types(random_blocks(rng, 61, 29, 29), rows);
    check_all_types(random_blocks(rng, 5, 32, 16), rows);
  }
}

TEST_P(ProjectRowsTest, OneGroupIsADenseProduct) {
  check_all_types(random_blocks(rng, 301, 301, 149), 19);
  check_all_types(random_blocks(rng, 96, 96, 48), 33);
}

TEST_P(ProjectRowsTest, WideMatricesMatchDenseReference) {
  expect_matches_reference<bf16, bf16>(rng, random_sparse(rng, 3307, 331, 3), 5);
  expect_matches_reference<float, float>(rng, random_sparse(rng, 6151, 67, 1), 3);
  expect_matches_reference<bf16, float>(rng, random_sparse(rng, 12287, 67, 1), 3);
  check_all_types(random_blocks(rng, 521, 8, 1), 67);
  check_all_types(random_blocks(rng, 263, 128, 71), 65);
}

// A device multiplies by these with a library, about sixteen of their rows at a time.
TEST_P(ProjectRowsTest, RowsTooWideForABlockMatchDenseReference) {
  check_all_types(random_sparse(rng, 12301, 401, 1), 19);
  expect_matches_reference<bf16, bf16>(rng, random_sparse(rng, 12289, 1013, 1), 1);
}

TEST_P(ProjectRowsTest, AColumnMayHaveANonzeroInEveryRow) {
  check_all_types(random_sparse(rng, 1009, 2, 2), 7);
}

TEST_P(ProjectRowsTest, WithoutPaddingOrOffsetNothingElseComesOut) {
  const OwnedBlockRows p = random_blocks(rng, 256, 32, 8);
  BasicMatrix<bf16> g = rounded_to<bf16>(rng.matrix(65, 256)), w(65, 64);
  project_with(p, any_matrix(w), any_matrix(g), 0);
  EXPECT_TRUE(all_near(w, product(as_f64(g), dense(p.view())), {.abs = 2e-5, .eps = 0.51}));
}

TEST_P(ProjectRowsTest, EmptyMatricesAreLeftAlone) {
  Matrix g(0, 67), w(0, 23);
  project_with(random_sparse(rng, 67, 23, 3), any_matrix(w), any_matrix(g));
  w = Matrix(0, 34);
  project_with(random_blocks(rng, 67, 32, 16), any_matrix(w), any_matrix(g));
  g = Matrix(5, 0);
  w = Matrix(5, 0);
  project_with(random_blocks(rng, 0, 32, 16), any_matrix(w), any_matrix(g));
}

TEST_P(ProjectRowsTest, WithoutRowsOfPEveryElementIsZero) {
  Matrix g(5, 0), w = rng.matrix(5, 7);
  project_with(random_sparse(rng, 0, 7, 2), any_matrix(w), any_matrix(g));
  EXPECT_EQ(w, Matrix(5, 7));
}

TEST_P(ProjectRowsTest, NotANumberStaysInItsRowAndGroup) {
  Matrix g = rng.matrix(37, 67), w(37, 34);
  g(36, 40) = std::numeric_limits<float>::quiet_NaN();
  project_with(random_blocks(rng, 67, 32, 16), any_matrix(w), any_matrix(g));
  for (std::int64_t i = 0; i < w.rows; ++i) {
    for (std::int64_t j = 0; j < w.cols; ++j) {
      EXPECT_EQ(std::isnan(w(i, j)), i == 36 && j / 16 == 1) << i << "," << j;
    }
  }
}

TEST_P(ProjectRowsTest, InfinityReachesTheColumnsOfItsRowOfP) {
  Matrix g = rng.matrix(37, 67), w(37, 23);
  g(36, 40) = std::numeric_limits<float>::infinity();
  const OwnedSparseRows p = random_sparse(rng, 67, 23, 3);
  project_with(p, any_matrix(w), any_matrix(g));
  for (std::int64_t i = 0; i < w.rows; ++i) {
    for (std::int64_t j = 0; j < w.cols; ++j) {
      const bool reached = i == 36 && dense(p.view())(40, j) != 0.0;
      EXPECT_EQ(std::isinf(w(i, j)), reached) << i << "," << j;
    }
  }
}

TEST_P(ProjectRowsTest, RepeatedCallsGiveEqualBits) {
  const OwnedSparseRows sparse = random_sparse(rng, 67, 5, 3);
  Matrix h = rng.matrix(47, 67), third(47, 5), fourth(47, 5);
  project_with(sparse, any_matrix(third), any_matrix(h), 0);
  project_with(sparse, any_matrix(fourth), any_matrix(h), 5);
  EXPECT_EQ(third, fourth);
  Matrix g = rng.matrix(47, 67), first(47, 34), second(47, 34);
  const OwnedBlockRows p = random_blocks(rng, 67, 32, 16);
  project_with(p, any_matrix(first), any_matrix(g), 0);
  project_with(p, any_matrix(second), any_matrix(g), 5);
  EXPECT_EQ(first, second);
}

TEST_P(ProjectRowsTest, TheProductOfBothSidesIsTheCoreOfTheGradient) {
  Matrix x = rng.matrix(29, 41), dy = rng.matrix(29, 67), left(29, 34), right(29, 21);
  const OwnedBlockRows p = random_blocks(rng, 67, 32, 16), q = random_blocks(rng, 41, 32, 16);
  project_with(p, any_matrix(left), any_matrix(dy));
  project_with(q, any_matrix(right), any_matrix(x));
  const MatrixF64 g = product(transposed(as_f64(dy)), as_f64(x));
  const MatrixF64 core = product(transposed(as_f64(left)), as_f64(right));
  EXPECT_TRUE(all_near(core, reference_core(g, dense(p.view()), dense(q.view())), {.abs = 2e-4}));
}

TEST_P(ProjectRowsTest, RejectsWrongShapesAndLeavesTheResultAlone) {
  const OwnedSparseRows sparse = random_sparse(rng, 67, 23, 3);
  const OwnedBlockRows blocks = random_blocks(rng, 67, 32, 16);
  std::vector<float> scratch(100000);
  Matrix g = rng.matrix(13, 67), wrong_g = rng.matrix(13, 66), w = rng.matrix(12, 23);
  const Matrix before = w;
  const auto sparse_call = [&](Matrix& of) {
    on_backend::project_rows(any_matrix(w), any_matrix(of), sparse.view(), scratch);
  };
  EXPECT_THAT([&] { sparse_call(g); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w is 12x23, expected 13x23")));
  EXPECT_THAT([&] { sparse_call(wrong_g); },
              ThrowsMessage<InvalidArgument>(HasSubstr("g is 13x66, expected 13x67")));
  EXPECT_THAT(
      [&] { on_backend::project_rows(any_matrix(w), any_matrix(g), blocks.view(), scratch); },
      ThrowsMessage<InvalidArgument>(HasSubstr("w is 12x23, expected 13x34")));
  EXPECT_EQ(w, before);
}

TEST_P(ProjectRowsTest, RejectsTooLittleScratch) {
  const OwnedBlockRows p = random_blocks(rng, 67, 32, 16);
  Matrix g = rng.matrix(13, 67), w = rng.matrix(13, 34);
  const Matrix before = w;
  std::vector<float> scratch(static_cast<std::size_t>(project_scratch_elems(p.view()) - 1));
  EXPECT_THAT(
      [&] { on_backend::project_rows(any_matrix(w), any_matrix(g), p.view(), scratch); },
      ThrowsMessage<InvalidArgument>(HasSubstr("scratch has " + std::to_string(scratch.size()))));
  EXPECT_EQ(w, before);
}

TEST_P(ProjectRowsTest, RejectsBlocksThatDoNotAddUp) {
  OwnedBlockRows p = random_blocks(rng, 67, 32, 16);
  p.shape.cols += 1;
  Matrix g = rng.matrix(13, 67), w(13, 35);
  std::vector<float> scratch(100000);
  EXPECT_THAT([&] { on_backend::project_rows(any_matrix(w), any_matrix(g), p.view(), scratch); },
              ThrowsMessage<InvalidArgument>(HasSubstr("p is 67x35, expected 67x34")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ProjectRowsTest,
                         testing::ValuesIn(built_backends("compress_linear")), backend_name);

}  // namespace
}  // namespace sluiceway::test
