// decompress() against a dense double-precision reference, on every backend of this build.
#include "kernels/decompress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
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

template <class Owned>
struct Pair {
  Owned p, q;
  std::int64_t m() const { return p.view().rows; }
  std::int64_t n() const { return q.view().rows; }
  std::int64_t dm() const { return p.view().cols; }
  std::int64_t dn() const { return q.view().cols; }
  MatrixF64 reference(const MatrixF64& d) const {
    return reference_expanded(d, dense(p.view()), dense(q.view()));
  }
};
using SparsePair = Pair<OwnedSparseRows>;
using BlockPair = Pair<OwnedBlockRows>;

// Calls with exactly the promised scratch, between guards.
template <class P, class Q>
void decompress_with(const P& p, const Q& q, const AnyMatrix& w, MatrixView<std::uint16_t> low,
                     const AnyMatrix& d, const WeightUpdate& update) {
  GuardedArray<float> scratch(static_cast<std::size_t>(decompress_scratch_elems(p, q)), 1);
  on_backend::decompress(w, low, d, p, q, update, scratch.span());
  EXPECT_TRUE(scratch.guards_intact());
}

template <class Owned>
void decompress_with(const Pair<Owned>& pair, const AnyMatrix& w, const AnyMatrix& d,
                     const WeightUpdate& update) {
  decompress_with(pair.p.view(), pair.q.view(), w, {}, d, update);
}

MatrixF64 updated(const MatrixF64& w, const MatrixF64& x, const WeightUpdate& update) {
  MatrixF64 out = w;
  for (std::size_t i = 0; i < out.v.size(); ++i) {
    out.v[i] =
        static_cast<double>(update.decay) * w.v[i] + static_cast<double>(update.alpha) * x.v[i];
  }
  return out;
}

template <typename TW, typename TD, class AnyPair>
void expect_matches_reference(Rng& rng, const AnyPair& pair) {
  const WeightUpdate update{.decay = 0.75F, .alpha = -0.5F};
  const BasicMatrix<TW> w = rounded_to<TW>(rng.matrix(pair.m(), pair.n()));
  const BasicMatrix<TD> d = rounded_to<TD>(rng.matrix(pair.dm(), pair.dn()));
  PaddedMatrix<TW> w_padded(w);
  PaddedMatrix<TD> d_padded(d);
  decompress_with(pair, w_padded.any(), d_padded.any(), update);
  // Half an ulp for the rounding, plus the error of f32 sums before it.
  EXPECT_TRUE(all_near(w_padded.matrix(), updated(as_f64(w), pair.reference(as_f64(d)), update),
                       {.abs = 1e-5, .eps = std::is_same_v<TW, float> ? 4.0 : 0.51}))
      << pair.m() << "x" << pair.n() << " " << to_string(dtype_of<TW>);
  EXPECT_TRUE(w_padded.padding_intact());
}

class DecompressTest : public BackendTest {
 protected:
  Rng rng{20240611};

  SparsePair sparse(std::int64_t m, std::int64_t n, std::int64_t dm, std::int64_t dn,
                    std::int64_t nnz) {
    return {random_sparse(rng, m, dm, nnz), random_sparse(rng, n, dn, nnz)};
  }
  BlockPair blocks(std::int64_t m, std::int64_t n, std::int64_t block, std::int64_t kept) {
    return {random_blocks(rng, m, block, kept), random_blocks(rng, n, block, kept)};
  }
  template <class AnyPair>
  void check_all_types(const AnyPair& pair) {
    expect_matches_reference<float, float>(rng, pair);
    expect_matches_reference<float, bf16>(rng, pair);
    expect_matches_reference<bf16, float>(rng, pair);
    expect_matches_reference<bf16, bf16>(rng, pair);
    expect_matches_reference<f16, f16>(rng, pair);
  }
};

TEST_P(DecompressTest, SparseMatchesDenseReferenceOnPrimeShapes) {
  check_all_types(sparse(67, 41, 23, 17, 3));
  check_all_types(sparse(5, 307, 3, 101, 2));
  check_all_types(sparse(48, 64, 16, 32, 4));
}

TEST_P(DecompressTest, BlocksMatchDenseReferenceOnPrimeShapes) {
  check_all_types(blocks(67, 41, 32, 8));
  check_all_types(blocks(61, 563, 32, 16));
  check_all_types(blocks(64, 96, 32, 8));
  check_all_types(blocks(53, 47, 7, 3));
  check_all_types(blocks(31, 601, 29, 29));
  check_all_types(BlockPair{random_blocks(rng, 37, 5, 2), random_blocks(rng, 700, 300, 33)});
}

// Dense on both sides, like svd: a device passes them to a library, as many rows at a time as fit.
TEST_P(DecompressTest, OneGroupIsTwoDenseProducts) {
  check_all_types(BlockPair{random_blocks(rng, 331, 331, 67), random_blocks(rng, 127, 127, 71)});
  check_all_types(BlockPair{random_blocks(rng, 97, 101, 97), random_blocks(rng, 79, 83, 79)});
  check_all_types(BlockPair{random_blocks(rng, 97, 97, 67), random_blocks(rng, 79, 32, 8)});
}

TEST_P(DecompressTest, OneElementIsTheProductOfThree) {
  check_all_types(sparse(1, 1, 1, 1, 1));
  check_all_types(blocks(1, 1, 32, 8));
}

// Shapes for which a device has room for few or no rows of P D, or takes the columns of P in parts.
TEST_P(DecompressTest, LargeCoresMatchDenseReference) {
  expect_matches_reference<bf16, float>(rng, sparse(9, 41, 23, 3001, 3));
  expect_matches_reference<float, bf16>(rng, sparse(3, 41, 5, 11501, 3));
  expect_matches_reference<float, float>(
      rng, BlockPair{random_blocks(rng, 300, 300, 290), random_blocks(rng, 61, 32, 8)});
}

TEST_P(DecompressTest, WhereRowsStartDoesNotShowInTheBits) {
  const auto check = [&]<typename T>(T, const auto& pair, Rounding rounding) {
    BasicMatrix<T> aligned = rounded_to<T>(rng.matrix(pair.m(), pair.n()));
    PaddedMatrix<T> shifted(aligned);
    BasicMatrix<T> d = rounded_to<T>(rng.matrix(pair.dm(), pair.dn()));
    PaddedMatrix<T> shifted_d(d);
    const WeightUpdate update{.decay = 0.75F, .alpha = -0.5F, .rounding = rounding};
    decompress_with(pair, any_matrix(aligned), any_matrix(d), update);
    decompress_with(pair, shifted.any(), shifted_d.any(), update);
    EXPECT_EQ(aligned, shifted.matrix());
  };
  const BlockPair bp = blocks(67, 1088, 32, 8);
  const SparsePair sp = sparse(19, 256, 16, 32, 4);
  check(float{}, bp, Rounding::kNearest);
  check(bf16{}, bp, Rounding::kStochastic);
  check(f16{}, sp, Rounding::kNearest);
  check(bf16{}, sp, Rounding::kStochastic);
}

TEST_P(DecompressTest, EmptyWeightIsAccepted) {
  Matrix w(0, 13), d = rng.matrix(7, 5);
  decompress_with(sparse(0, 13, 7, 5, 2), any_matrix(w), any_matrix(d), {});
  w = Matrix(13, 0);
  decompress_with(sparse(13, 0, 7, 5, 2), any_matrix(w), any_matrix(d), {});
  d = Matrix(0, 0);
  w = Matrix(0, 0);
  decompress_with(blocks(0, 0, 32, 8), any_matrix(w), any_matrix(d), {});
}

TEST_P(DecompressTest, EmptyCoreOnlyDecays) {
  Matrix w = rng.matrix(13, 29), d(0, 0);
  const Matrix before = w;
  decompress_with(sparse(13, 29, 0, 0, 0), any_matrix(w), any_matrix(d),
                  {.decay = 0.5F, .alpha = 1});
  for (std::size_t i = 0; i < w.v.size(); ++i) EXPECT_EQ(w.v[i], 0.5F * before.v[i]);
}

TEST_P(DecompressTest, ZeroCoreLeavesWeightsBitIdentical) {
  const auto check = [&]<typename T>(T, Rounding rounding) {
    BasicMatrix<T> w = rounded_to<T>(rng.matrix(67, 41));
    const BasicMatrix<T> before = w;
    Matrix d(23, 17);
    const WeightUpdate update{.alpha = 0.01F, .rounding = rounding, .key = {.seed = 3}};
    decompress_with(sparse(67, 41, 23, 17, 3), any_matrix(w), any_matrix(d), update);
    EXPECT_EQ(w, before);
  };
  check(float{}, Rounding::kNearest);
  check(bf16{}, Rounding::kNearest);
  check(f16{}, Rounding::kNearest);
  check(bf16{}, Rounding::kStochastic);
}

TEST_P(DecompressTest, NotANumberInTheCoreReachesTheWeights) {
  BasicMatrix<bf16> w = rounded_to<bf16>(rng.matrix(40, 33));
  Matrix d = rng.matrix(10, 9);
  d(9, 8) = std::numeric_limits<float>::quiet_NaN();
  const WeightUpdate update{.alpha = 1.0F, .rounding = Rounding::kStochastic};
  decompress_with(blocks(40, 33, 32, 8), any_matrix(w), any_matrix(d), update);
  const auto bad =
      std::count_if(w.v.begin(), w.v.end(), [](bf16 x) { return std::isnan(to_float(x)); });
  EXPECT_EQ(bad, 8);  // The last 8 rows of the last column.
}

TEST_P(DecompressTest, IdentityAddsTheCore) {
  const auto check = [&]<typename T>(T) {
    const BasicMatrix<T> w = rounded_to<T>(rng.matrix(13, 523));
    BasicMatrix<bf16> d = rounded_to<bf16>(rng.matrix(13, 523));
    PaddedMatrix<T> w_padded(w);
    PaddedMatrix<bf16> d_padded(d);
    const WeightUpdate update{.decay = 0.5F, .alpha = -0.25F};
    on_backend::decompress(w_padded.any(), {}, d_padded.any(), update);
    EXPECT_TRUE(all_near(w_padded.matrix(), updated(as_f64(w), as_f64(d), update),
                         {.abs = 1e-7, .eps = 0.51}));
    EXPECT_TRUE(w_padded.padding_intact());
  };
  check(float{});
  check(bf16{});
  check(f16{});
}

// ---- Stochastic rounding -----------------------------------------------------------------------

TEST_P(DecompressTest, StochasticRoundingIsUnbiased) {
  // Weights of 1 plus a quarter of a bf16 ulp (2^-7): rounded up with probability 1/4.
  constexpr std::int64_t kRows = 401, kCols = 499;
  BasicMatrix<bf16> w(kRows, kCols);
  w.v.assign(w.v.size(), from_float<bf16>(1.0F));
  Matrix d(kRows, kCols);
  d.v.assign(d.v.size(), 1.0F);
  const WeightUpdate update{
      .alpha = 0x1p-9F, .rounding = Rounding::kStochastic, .key = {.seed = 11, .step = 5}};
  on_backend::decompress(any_matrix(w), {}, any_matrix(d), update);
  const auto up =
      static_cast<double>(std::count(w.v.begin(), w.v.end(), from_float<bf16>(1.0F + 0x1p-7F)));
  const auto down = static_cast<double>(std::count(w.v.begin(), w.v.end(), from_float<bf16>(1.0F)));
  const double total = kRows * kCols;
  EXPECT_EQ(up + down, total);
  EXPECT_NEAR(up, total / 4, 5 * std::sqrt(total * 3 / 16));  // Five standard deviations.
}

TEST_P(DecompressTest, StochasticRoundingDrawsTheBitsOfItsGlobalIndex) {
  for (const std::int64_t cols : {293, 256}) {  // 256: groups of noise start where vectors do.
    BasicMatrix<bf16> w = rounded_to<bf16>(rng.matrix(7, cols));
    const BasicMatrix<bf16> before = w;
    Matrix d = rng.matrix(7, cols);
    const WeightUpdate update{.alpha = 0.01F,
                              .rounding = Rounding::kStochastic,
                              .key = {.seed = 1, .step = 2, .tensor = 3, .purpose = 4},
                              .row_offset = 1000};
    on_backend::decompress(any_matrix(w), {}, any_matrix(d), update);
    const auto first = static_cast<std::uint64_t>(1000 * cols);
    std::size_t differing = 0;
    for (std::size_t i = 0; i < w.v.size(); ++i) {
      const float x = std::fma(update.alpha, d.v[i], to_float(before.v[i]));
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) + noise_16(update.key, first + i);
      if (w.v[i].bits != bits >> 16) ++differing;
    }
    // Without a fused multiply-add, a sum may fall on the other side of a threshold.
    EXPECT_LE(differing, 2U);
  }
}

TEST_P(DecompressTest, RowRangesGiveTheBitsOfTheWhole) {
  const SparsePair sp = sparse(96, 293, 23, 77, 3);
  const BlockPair bp = blocks(96, 293, 32, 8);
  Matrix sparse_d = rng.matrix(23, 77), block_d = rng.matrix(24, bp.dn());
  const BasicMatrix<bf16> before = rounded_to<bf16>(rng.matrix(96, 293));
  const WeightUpdate update{.decay = 0.99F,
                            .alpha = 0.01F,
                            .rounding = Rounding::kStochastic,
                            .key = {.seed = 1, .step = 2},
                            .row_offset = 7};
  BasicMatrix<bf16> whole = before;
  decompress_with(sp, any_matrix(whole), any_matrix(sparse_d), update);
  for (const std::int64_t cut : {1, 16, 37, 95}) {
    BasicMatrix<bf16> parts = before;
    for (const auto& [first, last] : {std::pair{std::int64_t{0}, cut}, {cut, std::int64_t{96}}}) {
      WeightUpdate part = update;
      part.row_offset += first;
      const AnyMatrix w{parts.v.data() + first * 293, last - first, 293, 293, DType::kBF16};
      decompress_with(sp.p.view().row_range(first, last), sp.q.view(), w, {}, any_matrix(sparse_d),
                      part);
    }
    EXPECT_EQ(parts, whole) << "cut before row " << cut;
  }
  whole = before;
  decompress_with(bp, any_matrix(whole), any_matrix(block_d), update);
  BasicMatrix<bf16> parts = before;
  for (std::int64_t group = 0; group < 3; ++group) {
    WeightUpdate part = update;
    part.row_offset += group * 32;
    const AnyMatrix w{parts.v.data() + group * 32 * 293, 32, 293, 293, DType::kBF16};
    const AnyMatrix d{block_d.v.data() + group * 8 * block_d.cols, 8, block_d.cols, block_d.cols,
                      DType::kF32};
    decompress_with(bp.p.view().group_range(group, group + 1), bp.q.view(), w, {}, d, part);
  }
  EXPECT_EQ(parts, whole);
}

// ---- Exact residual ----------------------------------------------------------------------------

TEST(ResidualTest, HalvesJoinToTheSameFloatForEveryUpperHalf) {
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const std::uint32_t bits = upper << 16 | lower;
      const float x = std::bit_cast<float>(bits);
      const float joined = join_residual(residual_hi(x), residual_low(x));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(joined), bits);
    }
  }
}

TEST_P(DecompressTest, ResidualFollowsTheFloatMasterBitForBit) {
  const SparsePair sp = sparse(35, 41, 23, 17, 3);
  const BlockPair bp = blocks(35, 41, 32, 8);
  Matrix master = rng.matrix(35, 41, 0.02);
  BasicMatrix<bf16> hi(35, 41);
  BasicMatrix<std::uint16_t> low(35, 41);
  for (std::size_t i = 0; i < master.v.size(); ++i) {
    hi.v[i] = residual_hi(master.v[i]);
    low.v[i] = residual_low(master.v[i]);
  }
  WeightUpdate plain{.decay = 0.9999F, .alpha = -1e-4F};
  WeightUpdate exact = plain;
  exact.rounding = Rounding::kResidual;
  for (int step = 0; step < 50; ++step) {
    Matrix d = rng.matrix(23, 17);
    decompress_with(sp, any_matrix(master), any_matrix(d), plain);
    decompress_with(sp.p.view(), sp.q.view(), any_matrix(hi), low.view(), any_matrix(d), exact);
    Matrix block_d = rng.matrix(bp.dm(), bp.dn());
    decompress_with(bp, any_matrix(master), any_matrix(block_d), plain);
    decompress_with(bp.p.view(), bp.q.view(), any_matrix(hi), low.view(), any_matrix(block_d),
                    exact);
  }
  for (std::size_t i = 0; i < master.v.size(); ++i) {
    ASSERT_EQ(join_residual(hi.v[i], low.v[i]), master.v[i]) << "element " << i;
    ASSERT_NEAR(to_float(hi.v[i]), master.v[i], 0x1p-8F * std::abs(master.v[i]));
  }
}

// ---- Errors ------------------------------------------------------------------------------------

TEST_P(DecompressTest, RejectsWrongShapesAndLeavesWeightsAlone) {
  const SparsePair sp = sparse(67, 41, 23, 17, 3);
  const BlockPair bp = blocks(67, 41, 32, 8);
  Matrix w = rng.matrix(67, 41), wrong_w = rng.matrix(67, 42), d = rng.matrix(24, 23);
  const Matrix before = w;
  EXPECT_THAT([&] { decompress_with(sp, any_matrix(w), any_matrix(d), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("d is 24x23, expected 23x17")));
  EXPECT_THAT([&] { decompress_with(bp, any_matrix(w), any_matrix(d), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("d is 24x23, expected 17x11")));
  EXPECT_THAT([&] { decompress_with(sp, any_matrix(wrong_w), any_matrix(d), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w is 67x42, expected 67x41")));
  EXPECT_THAT([&] { on_backend::decompress(any_matrix(w), {}, any_matrix(d), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w is 67x41, expected 24x23")));
  EXPECT_EQ(w, before);
}

TEST_P(DecompressTest, RejectsRoundingsThatTheTypeDoesNotHave) {
  Matrix w = rng.matrix(5, 7), d = rng.matrix(5, 7);
  BasicMatrix<bf16> narrow = rounded_to<bf16>(w);
  BasicMatrix<std::uint16_t> low(5, 6);
  EXPECT_THAT(
      [&] {
        on_backend::decompress(any_matrix(w), {}, any_matrix(d),
                               {.rounding = Rounding::kStochastic});
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("w is f32 with stochastic rounding, expected bf16")));
  EXPECT_THAT(
      [&] {
        on_backend::decompress(any_matrix(narrow), low.view(), any_matrix(d),
                               {.rounding = Rounding::kResidual});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("low is 5x6, expected 5x7")));
  EXPECT_THAT([&] { on_backend::decompress(any_matrix(narrow), low.view(), any_matrix(d), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("low is 5x6, expected 0x0")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecompressTest, testing::ValuesIn(built_backends("decompress")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
