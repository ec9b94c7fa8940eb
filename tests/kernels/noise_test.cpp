// draw_noise() against its definition, known answers, and statistics of such a sequence.
#include "kernels/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "tests/support/guarded_array.h"
#include "tests/support/noise_reference.h"
#include "tests/support/on_backend.h"

namespace sluiceway::test {
namespace {

constexpr NoiseKey kKey{0x0123456789ABCDEFU, 77, 0xFEDCBA9876543210U, 5};
constexpr NoiseFamily kFamilies[] = {NoiseFamily::kRademacher, NoiseFamily::kByteQuantile,
                                     NoiseFamily::kGaussian};

std::vector<float> drawn(NoiseFamily family, const NoiseKey& key, std::size_t count,
                         std::uint64_t first = 0) {
  std::vector<float> z(count);
  on_backend::draw_noise(std::span(z), key, first, family);
  return z;
}

double quantile(double p) {  // Of a Gaussian, by bisection.
  double low = -10, high = 10;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

TEST(NoiseTableTest, HoldsScaledQuantilesOfVarianceOne) {
  double squares = 0;
  for (int j = 0; j < 128; ++j) {
    const double q = quantile((128.5 + j) / 256);
    squares += q * q / 128;
  }
  double written = 0;
  for (std::size_t j = 0; j < 128; ++j) {
    const double q = quantile((128.5 + static_cast<double>(j)) / 256) / std::sqrt(squares);
    EXPECT_NEAR(kNoiseQuantiles[j], q, 1e-7 * q) << j;
    written += static_cast<double>(kNoiseQuantiles[j]) * static_cast<double>(kNoiseQuantiles[j]);
  }
  EXPECT_NEAR(written / 128, 1.0, 1e-7);
}

TEST(NoiseReferenceTest, GaussianIsNearTheTrueFunction) {
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const std::uint64_t at = i / 32 * 32 + i % 16;
    const std::uint32_t u = noise_word(kKey, at), v = noise_word(kKey, at + 16);
    const double uniform = static_cast<double>(
        std::fma(static_cast<float>(static_cast<std::int32_t>(u >> 1)), 0x1p-31F, 0x1p-32F));
    const double r = std::sqrt(-2 * std::log(uniform));
    const double angle = 2 * std::numbers::pi * static_cast<double>(v) * 0x1p-32;
    const double exact = r * (i % 32 < 16 ? std::cos(angle) : std::sin(angle));
    ASSERT_NEAR(reference_gaussian(kKey, i), exact, 5e-7 * std::max(1.0, std::abs(exact))) << i;
  }
}

class DrawNoiseTest : public BackendTest {};

TEST_P(DrawNoiseTest, FollowsTheDefinitionAtEveryStartAndLength) {
  for (const NoiseFamily family : kFamilies) {
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{257},
          std::uint64_t{2048}, std::uint64_t{4095}, (std::uint64_t{1} << 38) - 67}) {
      for (const std::size_t count : {0U, 1U, 2U, 67U, 256U, 2048U, 4099U}) {
        GuardedArray<float> z(count, 1 + count % 3);
        on_backend::draw_noise(z.span(), kKey, first, family);
        for (std::size_t k = 0; k < count; ++k) {
          const float expected = reference_z(family, kKey, first + k);
          ASSERT_EQ(std::memcmp(&z[k], &expected, sizeof expected), 0)
              << to_string(family) << " element " << first + k << ": " << z[k] << ", expected "
              << expected;
        }
        ASSERT_TRUE(z.guards_intact());
      }
    }
  }
}

TEST_P(DrawNoiseTest, IsFrozen) {  // A change here breaks the replay of every saved log.
  const std::uint64_t at[] = {0, 5, 31, 1000003, (std::uint64_t{1} << 33) + 12345};
  const float expected[3][5] = {
      {-0x1p+0F, 0x1p+0F, -0x1p+0F, -0x1p+0F, 0x1p+0F},
      {-0x1.206424p-1F, -0x1.c80d4p-3F, 0x1.16cb66p+0F, -0x1.38fa18p+0F, 0x1.43d3a4p+0F},
      {-0x1.01fa56p-1F, -0x1.3a8b02p-3F, -0x1.c48a6cp-3F, -0x1.437aaep-2F, 0x1.1efa3ap+1F},
  };  // Computed in exact rational arithmetic, apart from this code.
  for (std::size_t family = 0; family < 3; ++family) {
    for (std::size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(drawn(kFamilies[family], kKey, 1, at[k])[0], expected[family][k])
          << to_string(kFamilies[family]) << " element " << at[k];
    }
  }
}

// Standard deviations of the estimates below are 1 / sqrt(count), or sqrt(2), sqrt(96) times that.
constexpr std::size_t kCount = std::size_t{1} << 17;
const double kSigma = 1 / std::sqrt(static_cast<double>(kCount));

double mean_product(const std::vector<float>& a, const std::vector<float>& b, std::size_t lag = 0) {
  double sum = 0;
  for (std::size_t i = 0; i + lag < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i + lag]);
  }
  return sum / static_cast<double>(a.size() - lag);
}

TEST_P(DrawNoiseTest, HasTheMomentsOfItsFamily) {
  for (const NoiseFamily family : kFamilies) {
    double sums[5] = {};
    for (const float z : drawn(family, kKey, kCount)) {
      double power = 1;
      for (double& sum : sums) {
        sum += power / static_cast<double>(kCount);
        power *= static_cast<double>(z);
      }
    }
    const double fourth = family == NoiseFamily::kRademacher     ? 1.0
                          : family == NoiseFamily::kByteQuantile ? 2.9180
                                                                 : 3.0;
    EXPECT_NEAR(sums[1], 0, 5 * kSigma) << to_string(family);
    EXPECT_NEAR(sums[2], 1, 5 * std::sqrt(2.0) * kSigma) << to_string(family);
    EXPECT_NEAR(sums[3], 0, 5 * std::sqrt(15.0) * kSigma) << to_string(family);
    EXPECT_NEAR(sums[4], fourth, 5 * std::sqrt(96.0) * kSigma) << to_string(family);
  }
}

TEST_P(DrawNoiseTest, DoesNotCorrelateWithItselfOrOtherKeys) {
  for (const NoiseFamily family : kFamilies) {
    const std::vector<float> z = drawn(family, kKey, kCount);
    for (const std::size_t lag : {1U, 2U, 4U, 8U, 15U, 16U, 17U, 32U, 64U, 256U, 512U, 2048U}) {
      EXPECT_NEAR(mean_product(z, z, lag), 0, 5 * kSigma) << to_string(family) << " lag " << lag;
    }
    for (const NoiseKey& other : {NoiseKey{kKey.seed + 1, kKey.step, kKey.tensor, kKey.purpose},
                                  NoiseKey{kKey.seed, kKey.step + 1, kKey.tensor, kKey.purpose},
                                  NoiseKey{kKey.seed, kKey.step, kKey.tensor + 1, kKey.purpose},
                                  NoiseKey{kKey.seed, kKey.step, kKey.tensor, kKey.purpose + 1}}) {
      EXPECT_NEAR(mean_product(z, drawn(family, other, kCount)), 0, 5 * kSigma)
          << to_string(family);
    }
  }
}

// Runs of three signs, and sixteen bins of equal probability: chi-square with 7 and 15 degrees of
// freedom; a correct generator exceeds each bound once in 10^6.
TEST_P(DrawNoiseTest, FillsBinsEvenly) {
  for (const NoiseFamily family : kFamilies) {
    const std::vector<float> z = drawn(family, kKey, kCount);
    std::vector<double> runs(8), bins(16);
    for (std::size_t i = 0; i + 2 < kCount; i += 3) {
      const unsigned run =
          (z[i] < 0 ? 1U : 0U) | (z[i + 1] < 0 ? 2U : 0U) | (z[i + 2] < 0 ? 4U : 0U);
      runs[run] += 1;
    }
    for (const float x : z) {
      const double p = std::erfc(-static_cast<double>(x) / std::numbers::sqrt2) / 2;
      bins[std::min<std::size_t>(15, static_cast<std::size_t>(16 * p))] += 1;
    }
    const auto chi_square = [](const std::vector<double>& seen) {
      double total = 0, sum = 0;
      for (const double n : seen) total += n;
      const double expected = total / static_cast<double>(seen.size());
      for (const double n : seen) sum += (n - expected) * (n - expected) / expected;
      return sum;
    };
    EXPECT_LT(chi_square(runs), 40.5) << to_string(family);
    if (family == NoiseFamily::kGaussian) {
      EXPECT_LT(chi_square(bins), 56.5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DrawNoiseTest, testing::ValuesIn(built_backends("noise")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
