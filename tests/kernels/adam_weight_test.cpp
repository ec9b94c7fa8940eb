// adam_step() with weights kept in 16 bits: each form against the f32 weight of the same step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/adam.h"
#include "kernels/base/error.h"
#include "tests/support/adam_fixture.h"
#include "tests/support/on_backend.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLengths[] = {0, 1, 7, 37, 2053, 4099};
constexpr NoiseKey kKey{17, 4, 0xABCDEF0123456789U, 1};

float join(bf16 hi, std::uint16_t low) {
  const std::uint32_t top = std::uint32_t{hi.bits} - (low >= 0x8000 ? 1U : 0U);
  return std::bit_cast<float>(top << 16 | low);
}

class AdamWeightTest : public BackendTest {
 protected:
  // Returns the f32 weights after the step, which AdamTest compares with double precision.
  template <typename G>
  std::vector<float> stepped(const AdamChunk<G>& chunk, const std::vector<float>& w_before) {
    std::vector<float> m = chunk.m, v = chunk.v, w = w_before;
    on_backend::adam_step(std::span<const G>(chunk.g), kGradScale, AdamMoments::in_place(m, v),
                          adam_hyper(), MasterWeight{w, w});
    return w;
  }

  template <typename G, typename T>
  void check_copy(std::int64_t length) {
    const AdamChunk<G> chunk(rng, length);
    PlacedChunk<G> placed(chunk, 1);
    GuardedArray<T> copy(chunk.g.size(), 3);
    on_backend::adam_step(placed.g.span_const(), kGradScale, placed.moments(), adam_hyper(),
                          MasterAndCopy<T>{placed.w.span(), placed.w.span(), copy.span()});
    const std::vector<float> expected = stepped(chunk, chunk.w);
    EXPECT_EQ(placed.w.values(), expected);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(copy[i], from_float<T>(expected[i])) << "element " << i << " of " << length;
    }
    EXPECT_TRUE(placed.guards_intact() && copy.guards_intact());
  }

  template <typename G>
  void check_stochastic(std::int64_t length, std::uint64_t first) {
    const AdamChunk<G> chunk(rng, length);
    PlacedChunk<G> placed(chunk, 1);
    std::vector<bf16> before;
    std::vector<float> before_f32;
    for (const float x : chunk.w) {
      before.push_back(from_float<bf16>(x));
      before_f32.push_back(to_float(before.back()));
    }
    GuardedArray<bf16> w(before, 5);
    on_backend::adam_step(placed.g.span_const(), kGradScale, placed.moments(), adam_hyper(),
                          StochasticWeight{w.span(), w.span(), kKey, first});
    const std::vector<float> exact = stepped(chunk, before_f32);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const std::uint32_t sum = std::bit_cast<std::uint32_t>(exact[i]) + noise_16(kKey, first + i);
      ASSERT_EQ(w[i].bits, sum >> 16) << "element " << i << " of " << length;
    }
    EXPECT_TRUE(placed.guards_intact() && w.guards_intact());
  }

  template <typename G>
  void check_hi_lo(std::int64_t length) {
    const AdamChunk<G> chunk(rng, length);
    PlacedChunk<G> placed(chunk, 1);
    const std::size_t n = chunk.g.size();
    GuardedArray<bf16> hi(n, 1);
    GuardedArray<std::uint16_t> low(n, 2);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t u = std::bit_cast<std::uint32_t>(chunk.w[i]);
      low[i] = static_cast<std::uint16_t>(u);
      hi[i].bits = static_cast<std::uint16_t>((u + 0x8000U) >> 16);
    }
    on_backend::adam_step(placed.g.span_const(), kGradScale, placed.moments(), adam_hyper(),
                          HiLoWeight{hi.span(), low.span(), hi.span(), low.span()});
    const std::vector<float> expected = stepped(chunk, chunk.w);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(join(hi[i], low[i]), expected[i]) << "element " << i << " of " << length;
      const float distance = std::abs(to_float(hi[i]) - expected[i]);
      const float nearest = std::abs(to_float(from_float<bf16>(expected[i])) - expected[i]);
      ASSERT_EQ(distance, nearest) << "element " << i << " of " << length;
    }
    EXPECT_TRUE(placed.guards_intact() && hi.guards_intact() && low.guards_intact());
  }

  Rng rng{20240614};
};

TEST_P(AdamWeightTest, CopyIsTheNearestOfTheMaster) {
  for (const std::int64_t length : kLengths) {
    check_copy<float, bf16>(length);
    check_copy<float, f16>(length);
    check_copy<f16, f16>(length);
    check_copy<bf16, bf16>(length);
    check_copy<f16, bf16>(length);
    check_copy<bf16, f16>(length);
  }
}

TEST_P(AdamWeightTest, StochasticRoundingUsesTheNoiseOfTheGlobalIndex) {
  for (const std::int64_t length : kLengths) {
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{12345678901}}) {
      check_stochastic<float>(length, first);
      check_stochastic<f16>(length, first);
      check_stochastic<bf16>(length, first);
    }
  }
}

TEST_P(AdamWeightTest, HiLoIsExactlyTheF32Weight) {
  for (const std::int64_t length : kLengths) {
    check_hi_lo<float>(length);
    check_hi_lo<f16>(length);
    check_hi_lo<bf16>(length);
  }
}

// 2^16 weights of 1 take steps of 1/16 ulp downwards: nearest would not move one of them.
TEST_P(AdamWeightTest, StochasticRoundingIsRightOnAverage) {
  constexpr std::size_t kCount = 1 << 16;
  std::vector<float> g(kCount, 1.0F), m(kCount), v(kCount);
  std::vector<bf16> w(kCount, from_float<bf16>(1.0F));
  AdamHyper h;
  h.lr = 0x1p-12;  // The ulp below 1 is 2^-8.
  on_backend::adam_step(std::span<const float>(g), 1.0F, AdamMoments::in_place(m, v), h,
                        StochasticWeight{w, w, kKey, 0});
  double mean = 0.0;
  for (const bf16 x : w) mean += to_f64(x) / kCount;
  // One draw has a standard deviation of sqrt(p (1 - p)) ulp with p = 1/16; allows six of the mean.
  const double deviation = 0x1p-8 * std::sqrt(15.0) / 16 / std::sqrt(kCount);
  EXPECT_NEAR(mean, 1.0 - 0x1p-12, 6 * deviation);
}

TEST_P(AdamWeightTest, NotFiniteWeightsStayNotFinite) {
  const float inf = HUGE_VALF, nan = std::bit_cast<float>(0x7FFFFFFFU);
  std::vector<float> g(3), m(3), v(3), w = {inf, -inf, nan};
  std::vector<bf16> bf = {from_float<bf16>(inf), from_float<bf16>(-inf), bf16{0x7FFF}}, copy(3);
  on_backend::adam_step(std::span<const float>(g), 1.0F, AdamMoments::in_place(m, v), AdamHyper{},
                        MasterAndCopy<bf16>{w, w, copy});
  on_backend::adam_step(std::span<const float>(g), 1.0F, AdamMoments::in_place(m, v), AdamHyper{},
                        StochasticWeight{bf, bf, kKey, 0});
  for (const std::vector<bf16>& result : {copy, bf}) {
    EXPECT_EQ(to_float(result[0]), inf);
    EXPECT_EQ(to_float(result[1]), -inf);
    EXPECT_TRUE(std::isnan(to_float(result[2])));
  }
}

TEST_P(AdamWeightTest, RejectsWrongLengthsOfEveryForm) {
  std::vector<float> g(4), m(4), v(4), w(4);
  std::vector<bf16> hi(4), shorter(3);
  std::vector<std::uint16_t> low(5);
  const auto step = [&](const auto& weight) {
    on_backend::adam_step(std::span<const float>(g), 1.0F, AdamMoments::in_place(m, v), AdamHyper{},
                          weight);
  };
  EXPECT_THAT(
      [&] {
        step(MasterAndCopy<bf16>{w, w, shorter});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("w.copy has 3 elements, expected 4")));
  EXPECT_THAT(
      [&] {
        step(StochasticWeight{hi, shorter, kKey, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("w.out has 3 elements, expected 4")));
  EXPECT_THAT(
      [&] {
        step(HiLoWeight{hi, low, hi, low});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("w.low_in has 5 elements, expected 4")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, AdamWeightTest, testing::ValuesIn(built_backends("adam")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
