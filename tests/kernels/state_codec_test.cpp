// States in fewer bytes, against the formats' definition in double: both neighbours of a value, the
// chance of each, and what is promised beside that.
#include "kernels/state_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/philox.h"
#include "tests/support/backend.h"
#include "tests/support/guarded_array.h"
#include "tests/support/rng.h"
#include "tests/support/state_codec_reference.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr auto kSigned = Companding::kSigned, kPositive = Companding::kPositive;
constexpr std::size_t kSizes[] = {1, 7, 255, 256, 257, 1000, 4096};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Owns the noise for n elements, in whole blocks.
class Noise {
 public:
  Noise(std::uint64_t step, std::size_t n, std::uint16_t multiplier = kNoiseMultipliers[0])
      : bits_((n + kStateBlock - 1) / kStateBlock * kStateBlock), multiplier_(multiplier) {
    cpu::fill_bits({.seed = 3, .step = step, .tensor = 17, .purpose = 1}, 0, bits_);
  }
  operator RoundingNoise() const { return {bits_, multiplier_}; }
  std::uint16_t at(std::size_t i) const {
    return static_cast<std::uint16_t>(bits_[i] * multiplier_);
  }

 private:
  std::vector<std::uint16_t> bits_;
  std::uint16_t multiplier_;
};

// Numbers whose magnitudes span nine orders, with zeros among them.
std::vector<float> spread(Rng& rng, std::size_t n, Companding companding) {
  std::vector<float> x(n);
  for (float& each : x) {
    if (rng.below(10) == 0) continue;
    const double magnitude = std::exp(rng.uniform(-20, 0));
    const bool negative = companding == kSigned && rng.below(2) == 0;
    each = static_cast<float>(negative ? -magnitude : magnitude);
  }
  return x;
}

// Owns what one call of store_state() writes, between guards.
struct Stored8 {
  Companding companding;
  std::size_t elems;
  GuardedArray<std::uint8_t> codes;
  GuardedArray<float> scales;

  Stored8(Companding kind, std::size_t n)
      : companding(kind), elems(n), codes(blocks(n) * kStateBlock, 3), scales(blocks(n), 1) {}
  static std::size_t blocks(std::size_t n) { return (n + kStateBlock - 1) / kStateBlock; }

  Blocks8 view() { return {codes.span(), scales.span()}; }
  void store(std::span<const float> x, std::uint64_t step) {
    cpu::store_state(x, companding, Noise(step, x.size()), view());
  }
  std::vector<float> load() {
    GuardedArray<float> x(elems, 1);
    cpu::load_state(view(), companding, x.span());
    EXPECT_TRUE(x.guards_intact());
    return x.values();
  }
  double code(std::size_t i) const {
    return companding == kSigned ? static_cast<std::int8_t>(codes[i]) : codes[i];
  }
  bool guards_intact() const { return codes.guards_intact() && scales.guards_intact(); }
};

struct Stored24 {
  GuardedArray<bf16> hi;
  GuardedArray<std::uint8_t> low;

  explicit Stored24(std::size_t n) : hi(n, 1), low(n, 3) {}
  Split24 view() { return {hi.span(), low.span()}; }
  void store(std::span<const float> x, std::uint64_t step) {
    cpu::store_state(x, Noise(step, x.size(), 1), view());
  }
  std::vector<float> load() {
    GuardedArray<float> x(hi.size(), 1);
    cpu::load_state(view(), x.span());
    EXPECT_TRUE(x.guards_intact());
    return x.values();
  }
  bool guards_intact() const { return hi.guards_intact() && low.guards_intact(); }
};

class StateCodecTest : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Kernels, StateCodecTest, testing::ValuesIn(host_backends()), backend_name);

void expect_neighbours(Companding companding, std::size_t n) {
  SCOPED_TRACE(testing::Message() << n << " elements, positive: " << (companding == kPositive));
  Rng rng(n);
  const std::vector<float> x = spread(rng, n, companding);
  Stored8 stored(companding, n);
  stored.store(x, 1);
  EXPECT_TRUE(stored.guards_intact());
  const std::vector<float> loaded = stored.load();
  for (std::size_t i = 0; i < stored.codes.size(); ++i) {
    if (i >= n) {
      ASSERT_EQ(stored.code(i), 0) << "after the end, at " << i;
      continue;
    }
    const std::size_t first = i / kStateBlock * kStateBlock;
    float most = 0;
    for (std::size_t j = first; j < std::min(n, first + kStateBlock); ++j) {
      most = std::max(most, std::abs(x[j]));
    }
    ASSERT_EQ(stored.scales[i / kStateBlock], most);
    const double scale = most, code = stored.code(i), magnitude = std::abs(x[i]);
    const ExpectedCode expected = expected_code(companding, most > 0 ? magnitude / scale : 0);
    const bool raised = companding == kPositive && x[i] > 0 && std::abs(code) == 1;
    const double distance = std::abs(code) - expected.below;
    ASSERT_TRUE(distance == 0 || distance == 1 || (distance == -1 && expected.up < 1e-3) || raised)
        << i << ": " << x[i] << " of " << scale << " became " << code;
    if (code != 0) {
      ASSERT_EQ(code < 0, x[i] < 0);
    }
    const double value = std::copysign(scale * share_of(companding, std::abs(code)), code);
    ASSERT_NEAR(loaded[i], value, 1e-6 * std::abs(value));
  }
}

TEST_P(StateCodecTest, ACodeIsANeighbourOfTheValue) {
  for (const std::size_t n : kSizes) {
    expect_neighbours(kSigned, n);
    expect_neighbours(kPositive, n);
  }
}

// The mean over many draws, in units of the distance between both neighbours.
void expect_mean(Companding companding) {
  constexpr int kDraws = 20000;
  Rng rng(7);
  std::vector<float> x = spread(rng, kStateBlock, companding);
  std::vector<double> sum(x.size());
  Stored8 stored(companding, x.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    stored.store(x, static_cast<std::uint64_t>(draw));
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += std::abs(stored.code(i));
  }
  const double scale = stored.scales[0];
  for (std::size_t i = 0; i < x.size(); ++i) {
    const ExpectedCode expected = expected_code(companding, std::abs(x[i]) / scale);
    const bool raised = companding == kPositive && x[i] > 0 && expected.below == 0;
    const double mean = raised ? 1 : expected.below + expected.up;
    EXPECT_NEAR(sum[i] / kDraws, mean, 5 * 0.5 / std::sqrt(kDraws)) << x[i];
  }
}

TEST_P(StateCodecTest, TheMeanOfRoundingIsTheValue) {
  expect_mean(kSigned);
  expect_mean(kPositive);
}

TEST_P(StateCodecTest, APositiveSecondMomentIsNeverZero) {
  std::vector<float> v(kStateBlock, 1e-30F);
  v[5] = 1;
  v[6] = 0;
  Stored8 stored(kPositive, v.size());
  stored.store(v, 1);
  const std::vector<float> loaded = stored.load();
  for (std::size_t i = 0; i < v.size(); ++i) EXPECT_EQ(loaded[i] > 0, v[i] > 0) << i;
}

// 127, then 126 down to a code of 0 in one block: every level, of any scale.
TEST_P(StateCodecTest, AStoredValueIsStoredAgainAsItself) {
  Rng rng(11);
  for (int trial = 0; trial < 300; ++trial) {
    const Companding companding = trial % 2 == 0 ? kSigned : kPositive;
    Stored8 first(companding, kStateBlock), again(companding, kStateBlock);
    first.scales[0] = static_cast<float>(std::exp(rng.uniform(-60, 60)));
    for (std::size_t i = 0; i < kStateBlock; ++i) {
      first.codes[i] = companding == kPositive ? static_cast<std::uint8_t>(i)
                                               : static_cast<std::uint8_t>(i == 128 ? 0 : i);
    }
    again.store(first.load(), static_cast<std::uint64_t>(trial));
    // By values: where a level is too small for an f32, it is zero, whose code is 0.
    EXPECT_EQ(again.load(), first.load()) << "scale " << first.scales[0];
    EXPECT_EQ(again.scales.values(), first.scales.values());

    const std::vector<float> x = spread(rng, 700, kSigned);
    Stored24 split(700), split_again(700);
    split.store(x, 1);
    split_again.store(split.load(), 2);
    EXPECT_EQ(split_again.load(), split.load());
    std::vector<bf16> narrow(700), narrow_again(700);
    std::vector<float> wide(700);
    cpu::store_state(x, Noise(1, 700), narrow);
    cpu::load_state(std::span<const bf16>(narrow), wide);
    cpu::store_state(wide, Noise(2, 700), narrow_again);
    EXPECT_TRUE(std::ranges::equal(narrow, narrow_again, {}, &bf16::bits, &bf16::bits));
  }
}

TEST_P(StateCodecTest, Bf16TakesTheBitsOfTheNoise) {
  for (const std::size_t n : kSizes) {
    Rng rng(n);
    const std::vector<float> x = spread(rng, n, kSigned);
    GuardedArray<bf16> out(n, 1);
    const Noise from(4, n);
    cpu::store_state(x, from, out.span());
    EXPECT_TRUE(out.guards_intact());
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t sum = std::bit_cast<std::uint32_t>(x[i]) + from.at(i);
      ASSERT_EQ(out[i].bits, sum >> 16) << i;
    }
  }
}

TEST_P(StateCodecTest, WithoutNoiseAWeightKeepsTheBf16ThatIsNearestToIt) {
  Rng rng(31);
  std::vector<float> x = spread(rng, 3000, kSigned);
  for (std::size_t i = 0; i < x.size(); i += 2) {  // At, or close to, halfway between two bf16.
    const std::uint32_t low = 0x8000 - 0x100 + static_cast<std::uint32_t>(rng.below(0x201));
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0xFFFF0000U;
    x[i] = std::bit_cast<float>(bits | (i % 6 == 0 ? 0x8000U : low));
  }
  Stored24 split(x.size());
  cpu::store_state(x, {}, split.view());
  const std::vector<float> loaded = split.load();
  std::vector<bf16> narrow(x.size());
  cpu::store_state(x, {}, std::span(narrow));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(split.hi[i].bits, from_float<bf16>(x[i]).bits) << x[i];
    ASSERT_EQ(from_float<bf16>(loaded[i]).bits, split.hi[i].bits) << x[i];
    ASSERT_EQ(narrow[i].bits, from_float<bf16>(x[i]).bits) << x[i];
  }
}

TEST_P(StateCodecTest, WithoutNoiseACodeIsTheNearest) {
  Rng rng(32);
  for (const Companding companding : {kSigned, kPositive}) {
    const std::vector<float> x = spread(rng, kStateBlock, companding);
    Stored8 stored(companding, x.size());
    cpu::store_state(x, companding, {}, stored.view());
    const double scale = stored.scales[0];
    for (std::size_t i = 0; i < x.size(); ++i) {
      const ExpectedCode expected = expected_code(companding, std::abs(x[i]) / scale);
      if (std::abs(expected.up - 0.5) < 1e-3) continue;
      const bool raised = companding == kPositive && x[i] > 0 && expected.below == 0;
      const double code = raised ? 1 : expected.below + (expected.up > 0.5 ? 1 : 0);
      EXPECT_EQ(std::abs(stored.code(i)), code) << x[i];
    }
  }
}

TEST_P(StateCodecTest, HugeValuesStayFiniteAndStayAsTheyAre) {
  for (const Companding companding : {kSigned, kPositive}) {
    std::vector<float> x(kStateBlock, 3e38F);
    x[0] = kInfinity;
    x[1] = 0;
    x[2] = 1;
    Stored8 stored(companding, x.size()), again(companding, x.size());
    stored.store(x, 1);
    const std::vector<float> loaded = stored.load();
    EXPECT_EQ(loaded[0], std::numeric_limits<float>::max());
    EXPECT_EQ(loaded[1], 0);
    for (const float each : loaded) EXPECT_TRUE(std::isfinite(each));
    again.store(loaded, 2);
    EXPECT_EQ(again.load(), loaded);
  }
}

TEST_P(StateCodecTest, TheUpperPartOf24BitsIsTheNearestBf16) {
  for (const std::size_t n : kSizes) {
    Rng rng(n);
    std::vector<float> x = spread(rng, n, kSigned);
    for (std::size_t i = 0; i < n; i += 3) {  // Close to halfway between two bf16.
      const std::uint32_t bits = (std::bit_cast<std::uint32_t>(x[i]) & 0xFFFF0000U) | 0x7FF0U;
      x[i] = std::bit_cast<float>(bits + static_cast<std::uint32_t>(rng.below(0x200)));
    }
    Stored24 stored(n);
    stored.store(x, n);
    EXPECT_TRUE(stored.guards_intact());
    const std::vector<float> loaded = stored.load();
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NE(stored.low[i], 0x80) << i;
      ASSERT_EQ(stored.hi[i].bits, from_float<bf16>(loaded[i]).bits) << i;
      const auto found = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(loaded[i]));
      const auto given = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(x[i]));
      ASSERT_EQ(found % 256, 0) << i;
      ASSERT_LT(std::abs(found - given), 2 * 256) << i;
    }
  }
}

TEST_P(StateCodecTest, TheMeanOf24BitsIsTheValue) {
  constexpr int kDraws = 20000;
  const std::vector<float> x{1.2345678F, -3.3333333F, 1e-20F, 0.5F,
                             std::bit_cast<float>(0x3F807FFFU)};
  std::vector<double> sum(x.size());
  Stored24 stored(x.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    stored.store(x, static_cast<std::uint64_t>(draw));
    const std::vector<float> loaded = stored.load();
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += loaded[i];
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double unit = std::abs(x[i]) / 32768;  // At least one of 24 bits.
    EXPECT_NEAR(sum[i] / kDraws, x[i], 5 * unit / std::sqrt(kDraws)) << i;
  }
}

TEST_P(StateCodecTest, PartsHaveTheBitsOfTheWhole) {
  Rng rng(5);
  const std::vector<float> x = spread(rng, 1000, kSigned);
  Stored8 whole(kSigned, 1000), parts(kSigned, 1000);
  const Noise noise(1, 1000);
  const RoundingNoise from = noise;
  cpu::store_state(x, kSigned, from, whole.view());
  const std::span<const float> all = x;
  cpu::store_state(all.first(512), kSigned, {from.bits.first(512), from.multiplier},
                   {parts.codes.span().first(512), parts.scales.span().first(2)});
  cpu::store_state(all.subspan(512), kSigned, {from.bits.subspan(512), from.multiplier},
                   {parts.codes.span().subspan(512), parts.scales.span().subspan(2)});
  EXPECT_EQ(parts.codes.values(), whole.codes.values());
  EXPECT_EQ(parts.scales.values(), whole.scales.values());
}

TEST_P(StateCodecTest, EveryInstructionSetGivesTheSameBits) {
  Rng rng(21);
  for (const Companding companding : {kSigned, kPositive}) {
    const std::vector<float> x = spread(rng, 5000, companding);
    Stored8 here(companding, x.size()), there(companding, x.size());
    here.store(x, 2);
    const std::vector<float> loaded = here.load();
    for (const Backend& other : host_backends()) {
      select(other);
      there.store(x, 2);
      EXPECT_EQ(there.codes.values(), here.codes.values()) << other.name;
      EXPECT_EQ(there.load(), loaded) << other.name;
    }
    select(GetParam());
  }
}

TEST_P(StateCodecTest, ABlockOfNothingOrOfTracesIsZero) {
  std::vector<float> x(kStateBlock);
  Stored8 stored(kSigned, x.size());
  stored.store(x, 1);
  EXPECT_EQ(stored.load(), x);
  std::ranges::fill(x, -1e-39F);  // Below the least normal number.
  stored.store(x, 1);
  EXPECT_EQ(stored.load(), std::vector<float>(kStateBlock));
  Stored8 empty(kSigned, 0);
  empty.store({}, 1);
  EXPECT_TRUE(empty.guards_intact());
}

TEST_P(StateCodecTest, AValueThatIsNotFiniteSpoilsItsBlockAlone) {
  Rng rng(9);
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    std::vector<float> x = spread(rng, 2 * kStateBlock, kSigned);
    Stored8 clean(kSigned, x.size()), spoilt(kSigned, x.size());
    clean.store(x, 1);
    x[300] = bad;
    spoilt.store(x, 1);
    EXPECT_TRUE(spoilt.guards_intact());
    const std::vector<std::uint8_t> before = clean.codes.values(), after = spoilt.codes.values();
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + kStateBlock, after.begin()));
  }
}

// Beside an element that never rests, a moment whose gradient has ended decays as in f32.
TEST_P(StateCodecTest, AMomentWithoutAGradientComesToRest) {
  for (const Companding companding : {kSigned, kPositive}) {
    std::vector<float> x(kStateBlock, 0.37F);
    x[0] = 1;
    Stored8 stored(companding, x.size());
    for (std::uint64_t step = 0; step < 60; ++step) {
      for (std::size_t i = 1; i < x.size(); ++i) x[i] *= 0.9F;
      stored.store(x, step);
      x = stored.load();
    }
    double mean = 0;
    for (std::size_t i = 1; i < x.size(); ++i) mean += x[i] / 255.0;
    EXPECT_NEAR(mean / (0.37 * std::pow(0.9, 60)), 1, 0.3);
  }
}

TEST_P(StateCodecTest, WrongLengthsAreRefused) {
  std::vector<float> x(300), scales(2);
  std::vector<std::uint8_t> codes(512);
  std::vector<bf16> hi(299);
  const auto blocks = [&](std::size_t c, std::size_t s) {
    return Blocks8{std::span(codes).first(c), std::span(scales).first(s)};
  };
  EXPECT_THAT([&] { cpu::store_state(x, kSigned, Noise(1, 300), blocks(300, 2)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("codes has 300 elements, expected 512")));
  EXPECT_THAT([&] { cpu::load_state(blocks(512, 1), kSigned, x); },
              ThrowsMessage<InvalidArgument>(HasSubstr("scales has 1 elements, expected 2")));
  EXPECT_THAT([&] { cpu::store_state(x, kSigned, Noise(1, 256), blocks(512, 2)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("noise has 256 elements, expected 512")));
  EXPECT_THAT([&] { cpu::store_state(x, Noise(1, 300), std::span(hi)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("bf16 has 299 elements, expected 300")));
  EXPECT_THAT(
      [&] {
        cpu::store_state(x, Noise(1, 300), Split24{hi, codes});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("hi has 299 elements, expected 300")));
}

}  // namespace
}  // namespace sluiceway::test
