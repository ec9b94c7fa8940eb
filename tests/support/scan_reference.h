// overflow_scan() in plain loops and double precision, and the check of a scan against it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/overflow_scan.h"
#include "tests/support/matrix.h"

namespace sluiceway::test {

template <typename T>
ScanResult reference_scan(const std::vector<T>& x) {
  ScanResult out;
  long double sum = 0.0L;  // Double itself loses the last digits of sums of a million terms.
  for (const T value : x) {
    const double v = to_f64(value);
    sum += static_cast<long double>(v) * static_cast<long double>(v);
    out.finite = out.finite && std::isfinite(v);
    if (std::isnan(v) || std::isnan(out.abs_max)) {
      out.abs_max = std::numeric_limits<float>::quiet_NaN();
    } else {
      out.abs_max = std::max(out.abs_max, static_cast<float>(std::abs(v)));
    }
  }
  out.sum_squares = static_cast<double>(sum);
  return out;
}

inline constexpr double kSumTolerance = 5e-7;  // Relative, as the header promises.

inline void expect_same(const ScanResult& actual, const ScanResult& expected) {
  EXPECT_EQ(actual.finite, expected.finite);
  if (std::isnan(expected.abs_max)) {
    EXPECT_TRUE(std::isnan(actual.abs_max)) << actual.abs_max;
  } else {
    EXPECT_EQ(actual.abs_max, expected.abs_max);
  }
  if (std::isfinite(expected.sum_squares)) {
    EXPECT_NEAR(actual.sum_squares, expected.sum_squares, kSumTolerance * expected.sum_squares);
  } else {
    EXPECT_FALSE(std::isfinite(actual.sum_squares)) << actual.sum_squares;
  }
}

}  // namespace sluiceway::test
