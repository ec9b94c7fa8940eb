// compress() against a dense double-precision reference, on every backend of this build.
#include "kernels/compress.h"

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

// One projector pair of either family, and its call.
struct SparsePair {
  OwnedSparseRows p, q;
  MatrixF64 dense_p() const { return dense(p.view()); }
  MatrixF64 dense_q() const { return dense(q.view()); }
  std::int64_t scratch_elems() const { return compress_scratch_elems(p.view(), q.columns()); }
  void compress(MatrixView<float> s, float beta, const AnyMatrix& g,
                std::span<float> scratch) const {
    on_backend::compress(s, beta, g, p.view(), q.columns(), scratch);
  }
};
struct BlockPair {
  OwnedBlockRows p, q;
  MatrixF64 dense_p() const { return dense(p.view()); }
  MatrixF64 dense_q() const { return dense(q.view()); }
  std::int64_t scratch_elems() const { return compress_scratch_elems(p.view(), q.view()); }
  void compress(MatrixView<float> s, float beta, const AnyMatrix& g,
                std::span<float> scratch) const {
    on_backend::compress(s, beta, g, p.view(), q.view(), scratch);
  }
};

// Calls with exactly the promised scratch, between guards.
template <class Pair>
void compress_with(const Pair& pair, MatrixView<float> s, float beta, const AnyMatrix& g,
                   std::size_t scratch_offset = 1) {
  GuardedArray<float> scratch(static_cast<std::size_t>(pair.scratch_elems()), scratch_offset);
  pair.compress(s, beta, g, scratch.span());
  EXPECT_TRUE(scratch.guards_intact());
}

MatrixF64 with_beta(const Matrix& s, double beta, const MatrixF64& core) {
  MatrixF64 out = core;
  for (std::size_t i = 0; i < out.v.size(); ++i) out.v[i] += beta * static_cast<double>(s.v[i]);
  return out;
}

template <typename T, class Pair>
void expect_matches_reference(Rng& rng, const Pair& pair, std::int64_t m, std::int64_t n) {
  const BasicMatrix<T> g = rounded_to<T>(rng.matrix(m, n));
  const MatrixF64 core = reference_core(as_f64(g), pair.dense_p(), pair.dense_q());
  const Matrix before = rng.matrix(core.rows, core.cols);
  PaddedMatrix<T> g_padded(g);
  PaddedMatrix<float> s(before);
  compress_with(pair, s.view(), 0.5F, g_padded.any());
  EXPECT_TRUE(all_near(s.matrix(), with_beta(before, 0.5, core), {.abs = 2e-5, .eps = 8}))
      << m << "x" << n;
  EXPECT_TRUE(s.padding_intact());
  EXPECT_TRUE(g_padded.padding_intact());
  EXPECT_EQ(g_padded.matrix(), g);
}

class CompressTest : public BackendTest {
 protected:
  Rng rng{20240611};

  SparsePair sparse(std::int64_t m, std::int64_t n, std::int64_t dm, std::int64_t dn,
                    std::int64_t nnz) {
    return {random_sparse(rng, m, dm, nnz), random_sparse(rng, n, dn, nnz)};
  }
  BlockPair blocks(std::int64_t m, std::int64_t n, std::int64_t block, std::int64_t kept) {
    return {random_blocks(rng, m, block, kept), random_blocks(rng, n, block, kept)};
  }
  template <class Pair>
  void check_all_types(const Pair& pair, std::int64_t m, std::int64_t n) {
    expect_matches_reference<float>(rng, pair, m, n);
    expect_matches_reference<bf16>(rng, pair, m, n);
    expect_matches_reference<f16>(rng, pair, m, n);
  }
};

TEST_P(CompressTest, SparseMatchesDenseReferenceOnPrimeShapes) {
  check_all_types(sparse(67, 41, 23, 17, 3), 67, 41);
  check_all_types(sparse(5, 307, 3, 101, 2), 5, 307);
  check_all_types(sparse(48, 64, 16, 32, 4), 48, 64);
}

TEST_P(CompressTest, BlocksMatchDenseReferenceOnPrimeShapes) {
  check_all_types(blocks(67, 41, 32, 8), 67, 41);
  check_all_types(blocks(61, 563, 32, 16), 61, 563);
  check_all_types(blocks(64, 96, 32, 8), 64, 96);
  check_all_types(blocks(53, 47, 7, 3), 53, 47);
  check_all_types(blocks(31, 601, 29, 29), 31, 601);
}

TEST_P(CompressTest, BlocksMayDifferBetweenTheSides) {
  const BlockPair pair{random_blocks(rng, 37, 5, 2), random_blocks(rng, 700, 300, 33)};
  check_all_types(pair, 37, 700);
}

// Dense on both sides, like svd: a device passes them to a library, as many rows at a time as fit.
TEST_P(CompressTest, OneGroupIsTwoDenseProducts) {
  check_all_types(BlockPair{random_blocks(rng, 331, 331, 67), random_blocks(rng, 127, 127, 71)},
                  331, 127);
  check_all_types(BlockPair{random_blocks(rng, 97, 101, 97), random_blocks(rng, 79, 83, 79)}, 97,
                  79);
  check_all_types(BlockPair{random_blocks(rng, 97, 97, 67), random_blocks(rng, 79, 32, 8)}, 97, 79);
}

// Shapes for which a device has room for few or no rows of g, or takes g or a group of q in parts.
TEST_P(CompressTest, WideShapesMatchDenseReference) {
  expect_matches_reference<float>(rng, sparse(5, 3301, 3, 101, 2), 5, 3301);
  expect_matches_reference<bf16>(rng, sparse(3, 6301, 2, 101, 2), 3, 6301);
  expect_matches_reference<float>(rng, sparse(3, 12287, 2, 101, 2), 3, 12287);
  expect_matches_reference<f16>(rng, sparse(401, 13, 7, 3001, 2), 401, 13);
  const BlockPair pair{random_blocks(rng, 37, 5, 2), random_blocks(rng, 2100, 2100, 9)};
  expect_matches_reference<bf16>(rng, pair, 37, 2100);
}

// A device multiplies by these with a library, about sixteen of their rows at a time.
TEST_P(CompressTest, RowsTooWideForABlockMatchDenseReference) {
  const SparsePair pair = sparse(19, 12301, 7, 401, 1);
  check_all_types(pair, 19, 12301);
  check_all_types(sparse(1, 12289, 1, 1013, 1), 1, 12289);
  Matrix g = rng.matrix(19, 12301), first(7, 401), second(7, 401);
  compress_with(pair, first.view(), 0.0F, any_matrix(g), 0);
  compress_with(pair, second.view(), 0.0F, any_matrix(g), 5);
  EXPECT_EQ(first, second);
  const SparsePair none{random_sparse(rng, 3, 2, 1), random_sparse(rng, 12301, 5, 0)};
  g = rng.matrix(3, 12301);
  Matrix s = rng.matrix(2, 5);
  compress_with(none, s.view(), 0.0F, any_matrix(g));
  EXPECT_EQ(s, Matrix(2, 5));
}

TEST_P(CompressTest, WhereRowsStartDoesNotShowInTheBits) {
  const auto check = [&]<typename T>(T, const auto& pair, std::int64_t m, std::int64_t n) {
    BasicMatrix<T> g = rounded_to<T>(rng.matrix(m, n));
    PaddedMatrix<T> padded(g);
    const MatrixF64 core = reference_core(as_f64(g), pair.dense_p(), pair.dense_q());
    Matrix aligned(core.rows, core.cols), shifted(core.rows, core.cols);
    compress_with(pair, aligned.view(), 0.0F, any_matrix(g));
    compress_with(pair, shifted.view(), 0.0F, padded.any());
    EXPECT_EQ(aligned, shifted);
    EXPECT_TRUE(all_near(aligned, core, {.abs = 2e-5, .eps = 8}));
  };
  const BlockPair bp = blocks(67, 1088, 32, 8);
  const SparsePair sp = sparse(48, 64, 16, 32, 4);
  check(float{}, bp, 67, 1088);
  check(bf16{}, bp, 67, 1088);
  check(f16{}, sp, 48, 64);
  check(float{}, sp, 48, 64);
}

TEST_P(CompressTest, OneElementIsTheProductOfThree) {
  SparsePair pair = sparse(1, 1, 1, 1, 1);
  Matrix g = rng.matrix(1, 1), s(1, 1);
  compress_with(pair, s.view(), 0.0F, any_matrix(g));
  EXPECT_FLOAT_EQ(s.v[0], pair.p.value[0] * g.v[0] * pair.q.value[0]);
  check_all_types(blocks(1, 1, 32, 8), 1, 1);
}

TEST_P(CompressTest, EmptyGradientOnlyScalesTheCore) {
  Matrix g(0, 13), s = rng.matrix(7, 5);
  const Matrix before = s;
  SparsePair pair = sparse(0, 13, 7, 5, 2);
  compress_with(pair, s.view(), 2.0F, any_matrix(g));
  EXPECT_EQ(s, [&] {
    Matrix m = before;
    for (float& x : m.v) x *= 2.0F;
    return m;
  }());
  pair = sparse(13, 0, 7, 5, 2);
  g = Matrix(13, 0);
  compress_with(pair, s.view(), 0.0F, any_matrix(g));
  EXPECT_EQ(s, Matrix(7, 5));
}

TEST_P(CompressTest, EmptyCoreIsLeftEmpty) {
  Matrix g(0, 0), s(0, 0);
  compress_with(blocks(0, 0, 32, 8), s.view(), 0.0F, any_matrix(g));
  compress_with(sparse(0, 0, 0, 0, 0), s.view(), 0.0F, any_matrix(g));
  g = rng.matrix(5, 3);
  compress_with(sparse(5, 3, 0, 0, 0), s.view(), 0.0F, any_matrix(g));
}

TEST_P(CompressTest, BetaZeroOverwritesNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Matrix g = rng.matrix(40, 33);
  const auto check = [&](const auto& pair) {
    const MatrixF64 core = reference_core(as_f64(g), pair.dense_p(), pair.dense_q());
    Matrix s(core.rows, core.cols);
    s.v.assign(s.v.size(), nan);
    compress_with(pair, s.view(), 0.0F, any_matrix(g));
    EXPECT_TRUE(all_near(s, core, {.abs = 2e-5, .eps = 8}));
  };
  check(sparse(40, 33, 11, 9, 2));
  check(blocks(40, 33, 32, 8));
  Matrix s(40, 33);
  s.v.assign(s.v.size(), nan);
  on_backend::compress(s.view(), 0.0F, any_matrix(g));
  EXPECT_EQ(s, g);
}

TEST_P(CompressTest, NotANumberInTheGradientReachesTheCore) {
  Matrix g = rng.matrix(40, 33);
  g(39, 32) = std::numeric_limits<float>::quiet_NaN();
  const auto count_nan = [&](const auto& pair, Matrix s) {
    compress_with(pair, s.view(), 0.0F, any_matrix(g));
    return std::count_if(s.v.begin(), s.v.end(), [](float x) { return std::isnan(x); });
  };
  EXPECT_EQ(count_nan(sparse(40, 33, 11, 9, 2), Matrix(11, 9)), 4);
  EXPECT_EQ(count_nan(blocks(40, 33, 32, 8), Matrix(10, 9)), 2);  // 2 of 8 rows, 1 of 1 column.
}

TEST_P(CompressTest, AccumulatingTwoHalvesEqualsTheWhole) {
  Matrix g = rng.matrix(96, 40);
  const auto check = [&](const auto& pair, Matrix s, const auto& upper, const auto& lower,
                         MatrixView<float> upper_s, MatrixView<float> lower_s, Matrix& halves) {
    compress_with(pair, s.view(), 0.0F, any_matrix(g));
    const AnyMatrix first{g.v.data(), 64, 40, 40, DType::kF32};
    const AnyMatrix second{g.v.data() + 64 * 40, 32, 40, 40, DType::kF32};
    upper(upper_s, first);
    lower(lower_s, second);
    EXPECT_EQ(halves, s);
  };
  std::vector<float> scratch(100000);
  const SparsePair sp = sparse(96, 40, 24, 10, 3);
  Matrix halves(24, 10);
  check(
      sp, Matrix(24, 10),
      [&](MatrixView<float> s, const AnyMatrix& part) {
        on_backend::compress(s, 0.0F, part, sp.p.view().row_range(0, 64), sp.q.columns(), scratch);
      },
      [&](MatrixView<float> s, const AnyMatrix& part) {
        on_backend::compress(s, 1.0F, part, sp.p.view().row_range(64, 96), sp.q.columns(), scratch);
      },
      halves.view(), halves.view(), halves);
  const BlockPair bp = blocks(96, 40, 32, 8);
  Matrix stacked(24, 10);
  check(
      bp, Matrix(24, 10),
      [&](MatrixView<float> s, const AnyMatrix& part) {
        on_backend::compress(s, 0.0F, part, bp.p.view().group_range(0, 2), bp.q.view(), scratch);
      },
      [&](MatrixView<float> s, const AnyMatrix& part) {
        on_backend::compress(s, 0.0F, part, bp.p.view().group_range(2, 3), bp.q.view(), scratch);
      },
      stacked.view().row_range(0, 16), stacked.view().row_range(16, 24), stacked);
}

TEST_P(CompressTest, IdentityAddsTheGradient) {
  const auto check = [&]<typename T>(T) {
    BasicMatrix<T> g = rounded_to<T>(rng.matrix(13, 29));
    const Matrix before = rng.matrix(13, 29);
    PaddedMatrix<float> s(before);
    PaddedMatrix<T> g_padded(g);
    on_backend::compress(s.view(), -2.0F, g_padded.any());
    EXPECT_TRUE(all_near(s.matrix(), with_beta(before, -2.0, as_f64(g)), {.abs = 1e-7, .eps = 1}));
    EXPECT_TRUE(s.padding_intact());
  };
  check(float{});
  check(bf16{});
  check(f16{});
}

TEST_P(CompressTest, RepeatedCallsGiveEqualBits) {
  Matrix g = rng.matrix(67, 41), first(23, 17), second(23, 17);
  const SparsePair pair = sparse(67, 41, 23, 17, 3);
  compress_with(pair, first.view(), 0.0F, any_matrix(g), 0);
  compress_with(pair, second.view(), 0.0F, any_matrix(g), 5);
  EXPECT_EQ(first, second);
}

TEST_P(CompressTest, RejectsWrongShapesAndLeavesTheCoreAlone) {
  const SparsePair sp = sparse(67, 41, 23, 17, 3);
  const BlockPair bp = blocks(67, 41, 32, 8);
  std::vector<float> scratch(static_cast<std::size_t>(sp.scratch_elems()));
  Matrix g = rng.matrix(67, 41), wrong_g = rng.matrix(66, 41), s = rng.matrix(24, 17);
  const Matrix before = s;
  EXPECT_THAT([&] { sp.compress(s.view(), 0.0F, any_matrix(g), scratch); },
              ThrowsMessage<InvalidArgument>(HasSubstr("s is 24x17, expected 23x17")));
  EXPECT_THAT([&] { bp.compress(s.view(), 0.0F, any_matrix(g), scratch); },
              ThrowsMessage<InvalidArgument>(HasSubstr("s is 24x17, expected 17x11")));
  EXPECT_THAT([&] { sp.compress(s.view(), 0.0F, any_matrix(wrong_g), scratch); },
              ThrowsMessage<InvalidArgument>(HasSubstr("g is 66x41, expected 67x41")));
  EXPECT_THAT([&] { on_backend::compress(s.view(), 0.0F, any_matrix(g)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("s is 24x17, expected 67x41")));
  EXPECT_EQ(s, before);
}

TEST_P(CompressTest, RejectsTooLittleScratch) {
  const SparsePair pair = sparse(67, 41, 23, 17, 3);
  Matrix g = rng.matrix(67, 41), s = rng.matrix(23, 17);
  const Matrix before = s;
  std::vector<float> scratch(static_cast<std::size_t>(pair.scratch_elems() - 1));
  EXPECT_THAT(
      [&] { pair.compress(s.view(), 0.0F, any_matrix(g), scratch); },
      ThrowsMessage<InvalidArgument>(HasSubstr("scratch has " + std::to_string(scratch.size()))));
  EXPECT_EQ(s, before);
}

TEST_P(CompressTest, RejectsBlocksThatDoNotAddUp) {
  BlockPair pair = blocks(67, 41, 32, 8);
  pair.p.shape.cols += 1;
  Matrix g = rng.matrix(67, 41), s(18, 11);
  std::vector<float> scratch(100000);
  EXPECT_THAT([&] { pair.compress(s.view(), 0.0F, any_matrix(g), scratch); },
              ThrowsMessage<InvalidArgument>(HasSubstr("p is 67x18, expected 67x17")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, CompressTest, testing::ValuesIn(built_backends("compress")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
