// A factored second moment against the formula in double.
#include "compress/factored_moment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

constexpr std::int64_t kRows = 5, kCols = 7, kStep = 3;
constexpr double kBeta2 = 0.99, kFactor = 1.0 / 512;

struct Owned {
  std::vector<float> both;
  explicit Owned(Rng& rng) : both(rng.vector(kRows + kCols)) {
    for (float& x : both) x = x * x;
  }
  FactoredMoment view() { return FactoredMoment::of(both, kRows); }
};

TEST(FactoredMomentTest, AdvanceLeavesTheSourceAloneUnlessItIsTheTarget) {
  Rng rng{5};
  Owned from(rng), means(rng), to(rng);
  const std::vector<float> before = from.both;
  advance(from.view(), means.view(), kBeta2, kFactor, to.view());
  EXPECT_EQ(from.both, before);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double expected = kBeta2 * static_cast<double>(before[i]) +
                            (1 - kBeta2) * kFactor * kFactor * static_cast<double>(means.both[i]);
    EXPECT_FLOAT_EQ(to.both[i], static_cast<float>(expected));
  }
  advance(from.view(), means.view(), kBeta2, kFactor, from.view());
  EXPECT_EQ(from.both, to.both);
}

TEST(FactoredMomentTest, RootsMultiplyToTheRootOfTheMoment) {
  Rng rng{6};
  Owned moment(rng), out(rng);
  const FactoredRoots roots = roots_of(moment.view(), kBeta2, kStep, kFactor, 1e-8, out.view());
  EXPECT_FLOAT_EQ(roots.eps, static_cast<float>(1e-8 / kFactor));
  const FactoredMoment v = moment.view();
  for (std::size_t i = 0; i < v.row.size(); ++i) {
    for (std::size_t j = 0; j < v.col.size(); ++j) {
      const double whole =
          static_cast<double>(v.row[i]) * static_cast<double>(v.col[j]) / mean(v.row);
      const double expected = std::sqrt(whole / (1 - std::pow(kBeta2, kStep))) / kFactor;
      EXPECT_NEAR(static_cast<double>(roots.row[i]) * static_cast<double>(roots.col[j]), expected,
                  1e-6 * expected);
    }
  }
}

TEST(FactoredMomentTest, AMomentThatOverflowedDividesToZero) {
  Rng rng{8};
  Owned moment(rng), out(rng);
  moment.both[2] = std::numeric_limits<float>::infinity();
  moment.both[kRows + 1] = 0;
  const FactoredRoots roots = roots_of(moment.view(), kBeta2, 1, 1.0, 1e-8, out.view());
  for (const float row : roots.row) {
    for (const float col : roots.col) EXPECT_EQ(1.0F / (row * col + roots.eps), 0.0F);
  }
}

TEST(FactoredMomentTest, AMomentOfZerosHasRootsOfZero) {
  Rng rng{7};
  Owned moment(rng), out(rng);
  std::fill(moment.both.begin(), moment.both.end(), 0.0F);
  const FactoredRoots roots = roots_of(moment.view(), kBeta2, 1, 1.0, 1e-8, out.view());
  for (const float x : roots.row) EXPECT_EQ(x, 0.0F);
  for (const float x : roots.col) EXPECT_EQ(x, 0.0F);
}

}  // namespace
}  // namespace sluiceway::test
