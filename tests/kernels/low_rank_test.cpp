// perturb_low_rank() and materialise_low_rank() against std::fma one element at a time, on every
// backend.
#include "kernels/low_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/low_rank_reference.h"
#include "tests/support/noise_reference.h"
#include "tests/support/on_backend.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr NoiseKey kRoundingKey{5, 6, 7, 8};

struct Factors {
  std::int64_t rank, rows, cols;
  std::vector<float> left, right;

  Factors(Rng& rng, std::int64_t k, std::int64_t m, std::int64_t n, double scale = 1.0)
      : rank(k), rows(m), cols(n), left(rng.vector(k * m, scale)), right(rng.vector(k * n)) {}

  LowRank product() const { return {{left.data(), rank, rows}, {right.data(), rank, cols}}; }
};

template <typename T>
AnyMatrix view(const T* data, std::int64_t m, std::int64_t n) {
  return {const_cast<T*>(data), m, n, n, dtype_of<T>};
}

struct Shape {
  std::int64_t rows, cols;
};

template <typename W, typename Out>
void check(const std::vector<W>& w, const Shape& shape, const LowRank& pending, float gamma,
           const LowRank& direction, float eps, std::size_t offset = 0) {
  const auto [m, n] = shape;
  SCOPED_TRACE(testing::Message() << m << " x " << n << " of " << to_string(dtype_of<W>) << " to "
                                  << to_string(dtype_of<Out>) << ", rank " << pending.left.rows
                                  << " pending, " << direction.left.rows << " drawn");
  const GuardedArray<W> in(w, offset);
  GuardedArray<Out> plus(w.size(), offset + 1), minus(w.size(), offset + 2), out(w.size(), offset);
  on_backend::perturb_low_rank(view(in.data(), m, n), view(plus.data(), m, n),
                               view(minus.data(), m, n), pending, gamma, direction, eps);
  on_backend::materialise_low_rank(view(in.data(), m, n), view(out.data(), m, n), pending, gamma);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const auto k = static_cast<std::size_t>(i * n + j);
      const float theta = gamma * reference_added(to_float(w[k]), pending, i, j);
      const float z = reference_added(0.0F, direction, i, j);
      ASSERT_TRUE(same(plus[k], from_float<Out>(std::fma(eps, z, theta)))) << i << ", " << j;
      ASSERT_TRUE(same(minus[k], from_float<Out>(std::fma(-eps, z, theta)))) << i << ", " << j;
      ASSERT_TRUE(same(out[k], from_float<Out>(theta))) << i << ", " << j;
    }
  }
  ASSERT_TRUE(plus.guards_intact() && minus.guards_intact() && out.guards_intact());
}

class LowRankTest : public BackendTest {
 protected:
  template <typename W, typename Out>
  void check_shapes() {
    for (const auto& [m, n] :
         {Shape{0, 5}, {5, 0}, {1, 1}, {3, 7}, {4, 16}, {9, 129}, {35, 259}, {6, 263}, {2, 2053}}) {
      const std::int64_t rank = rng.below(6);
      const Factors pending(rng, rank, m, n, 0.01), drawn(rng, 1 + rng.below(5), m, n);
      check<W, Out>(rng.vector<W>(m * n, 0.1), {m, n}, pending.product(), 0.999F, drawn.product(),
                    1e-3F, static_cast<std::size_t>(rank % 3));
      if (HasFatalFailure()) return;
    }
  }

  Rng rng{20261123};
};

TEST_P(LowRankTest, FollowsTheDefinitionForEveryTypeAndShape) {
  check_shapes<float, float>();
  check_shapes<float, bf16>();
  check_shapes<float, f16>();
  check_shapes<bf16, bf16>();
  check_shapes<bf16, float>();
  check_shapes<bf16, f16>();
  check_shapes<f16, f16>();
  check_shapes<f16, float>();
  check_shapes<f16, bf16>();
}

TEST_P(LowRankTest, AddsManyRowsOfFactorsInTheirOrder) {
  for (const std::int64_t rank : {1, 8, 33, 401}) {
    const Factors pending(rng, rank, 7, 301, 0.1), drawn(rng, 4, 7, 301);
    check<float, float>(rng.vector(7 * 301), {7, 301}, pending.product(), 0.97F, drawn.product(),
                        0.01F);
  }
}

TEST_P(LowRankTest, TakesRowsAndFactorsOfSomethingLarger) {
  // Rows 2 to 8 of 11, with the factors 1 to 3 of 5, as a parallel caller passes them.
  constexpr std::int64_t kRows = 11, kCols = 37;
  const std::vector<bf16> w = rng.vector<bf16>(kRows * kCols);
  const Factors all(rng, 5, kRows, kCols), drawn(rng, 4, kRows, kCols);
  const auto some = [](const LowRank& product, std::int64_t first, std::int64_t last) {
    LowRank part{product.left.row_range(first, last), product.right.row_range(first, last)};
    part.left.data += 2;
    part.left.cols = 6;
    return part;
  };
  const std::vector<bf16> part(w.begin() + 2 * kCols, w.begin() + 8 * kCols);
  check<bf16, float>(part, {6, kCols}, some(all.product(), 1, 3), 0.9F, some(drawn.product(), 0, 4),
                     0.1F);
}

TEST_P(LowRankTest, PassesWhatIsSpecialAndOverflowsToInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {kInf,     -kInf,   std::nanf(""), 0.0F,      -0.0F,  65504.0F,
                           -65519.F, 3.3e38F, -3.39e38F,     0x1p-130F, 1e-45F, 1.0F};
  std::vector<float> w;
  for (int i = 0; i < 5 * 143; ++i) w.push_back(special[i % 12]);
  Factors pending(rng, 3, 5, 143), drawn(rng, 2, 5, 143);
  pending.left[2] = 0.0F, pending.left[7] = kInf, pending.right[20] = 0.0F;
  drawn.right[11] = 3e38F, drawn.left[0] = -3.0F;
  for (const float eps : {0.0F, 1e-3F, 40.0F, 1e37F}) {
    check<float, float>(w, {5, 143}, pending.product(), 1.0F, drawn.product(), eps);
    check<float, f16>(w, {5, 143}, {}, 1.0F, drawn.product(), eps);
    check<float, bf16>(w, {5, 143}, {}, 1.0F, {}, eps);
  }
}

TEST_P(LowRankTest, RoundsStochasticallyInPlaceWithTheBitsOfRoundingElsewhereForAnySplitOfRows) {
  for (const std::int64_t cols : {256, 83}) {  // Rows start where groups of noise start, or not.
    constexpr std::int64_t kRows = 21;
    const std::uint64_t start = cols == 256 ? 1280 : 7;
    const std::vector<bf16> w = rng.vector<bf16>(kRows * cols);
    const Factors pending(rng, 4, kRows, cols, 0.1);
    GuardedArray<bf16> in_place(w, 3);
    for (std::int64_t from = 0; from < kRows;) {
      const std::int64_t to = std::min(kRows, from + 1 + rng.below(8));
      LowRank part = pending.product();
      part.left.data += from;
      part.left.cols = to - from;
      const AnyMatrix rows = view(in_place.data() + from * cols, to - from, cols);
      on_backend::materialise_low_rank(rows, rows, part, 0.99F, Rounding::kStochastic, kRoundingKey,
                                       start + static_cast<std::uint64_t>(from * cols));
      from = to;
    }
    for (std::int64_t k = 0; k < kRows * cols; ++k) {
      const auto at = static_cast<std::size_t>(k);
      const float theta =
          0.99F * reference_added(to_float(w[at]), pending.product(), k / cols, k % cols);
      const std::uint32_t noise = noise_16(kRoundingKey, start + at);
      ASSERT_EQ(in_place[at], reference_stochastic(theta, noise)) << k;
    }
    EXPECT_TRUE(in_place.guards_intact());
  }
}

TEST_P(LowRankTest, FoldingAProductIntoTheWeightKeepsTheBitsOfLaterResults) {
  const Factors older(rng, 4, 13, 71, 0.01), newer(rng, 4, 13, 71, 0.01);
  const std::vector<float> w = rng.vector(13 * 71);
  Factors both(rng, 8, 13, 71);
  both.left = older.left, both.right = older.right;
  both.left.insert(both.left.end(), newer.left.begin(), newer.left.end());
  both.right.insert(both.right.end(), newer.right.begin(), newer.right.end());
  std::vector<float> folded(w.size()), expected(w.size()), found(w.size());
  on_backend::materialise_low_rank(view(w.data(), 13, 71), view(expected.data(), 13, 71),
                                   both.product(), 0.9F);
  on_backend::materialise_low_rank(view(w.data(), 13, 71), view(folded.data(), 13, 71),
                                   older.product(), 1.0F);
  on_backend::materialise_low_rank(view(folded.data(), 13, 71), view(found.data(), 13, 71),
                                   newer.product(), 0.9F);
  EXPECT_EQ(found, expected);
}

TEST_P(LowRankTest, RejectsShapesThatDoNotFitAndWritesNothing) {
  const std::vector<float> w(6, 1.0F);
  const std::vector<bf16> untouched(6, bf16{0xABCD});
  std::vector<bf16> a = untouched;
  const Factors good(rng, 2, 2, 3), other(rng, 2, 3, 2);
  const AnyMatrix from = view(w.data(), 2, 3), to = view(a.data(), 2, 3);
  const auto perturb = [&](const AnyMatrix& plus, const AnyMatrix& minus, const LowRank& pending,
                           const LowRank& drawn) {
    return [=] { on_backend::perturb_low_rank(from, plus, minus, pending, 1.0F, drawn, 1.0F); };
  };
  const auto says = [](const char* text) {
    return ThrowsMessage<InvalidArgument>(HasSubstr(text));
  };
  const LowRank product = good.product();
  EXPECT_THAT(perturb(to, view(a.data(), 3, 2), product, product),
              says("perturb_low_rank: minus is 3 x 2, expected 2 x 3, the shape of w"));
  EXPECT_THAT(perturb(view(a.data(), 1, 3), to, product, product), says("plus is 1 x 3"));
  EXPECT_THAT(perturb(to, from, product, product),
              says("minus is f32, expected bf16, the type of plus"));
  EXPECT_THAT(perturb(to, to, other.product(), product),
              says("factors of pending are 2 x 3 and 2 x 2, expected k x 2 and k x 3"));
  EXPECT_THAT(perturb(to, to, product, {product.left.row_range(0, 1), product.right}),
              says("factors of direction are 1 x 2 and 2 x 3"));
  AnyMatrix apart = from;
  apart.cols = 2;
  EXPECT_THAT([&] { on_backend::materialise_low_rank(apart, to, {}, 1.0F); },
              says("rows of w are 3 elements apart, expected 2"));
  const auto as_f16 = [&] {
    on_backend::materialise_low_rank(from, {a.data(), 2, 3, 3, DType::kF16}, product, 1.0F,
                                     Rounding::kStochastic);
  };
  EXPECT_THAT(as_f16, says("this rounding is not supported for f16"));
  EXPECT_EQ(a, untouched);
}

INSTANTIATE_TEST_SUITE_P(Kernels, LowRankTest, testing::ValuesIn(built_backends("low_rank")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
