// all_near(): absolute plus relative tolerance in units of the storage type's own epsilon.
//
//   |actual - expected| <= abs + eps * epsilon(T) * |expected|        T: the type of `actual`
//
// NaN is near NaN only, an infinity near the same infinity only.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/support/matrix.h"

namespace sluiceway::test {

struct Tolerance {
  double abs = 0.0;
  double eps = 0.0;
};

template <typename T>
inline constexpr double kEpsilon = 0.0;
template <>
inline constexpr double kEpsilon<double> = 0x1p-52;
template <>
inline constexpr double kEpsilon<float> = 0x1p-23;
template <>
inline constexpr double kEpsilon<f16> = 0x1p-10;
template <>
inline constexpr double kEpsilon<bf16> = 0x1p-7;

inline bool is_near(double actual, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= tolerance;
}

// Compares any two indexable containers of equal size; the failure names the worst element.
template <typename A, typename E>
testing::AssertionResult all_near(const A& actual, const E& expected, Tolerance tolerance) {
  using T = std::remove_cvref_t<decltype(actual[0])>;
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  }
  std::size_t bad = 0, worst = 0;
  double worst_excess = -1.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = to_f64(actual[i]), e = to_f64(expected[i]);
    const double allowed = tolerance.abs + tolerance.eps * kEpsilon<T> * std::abs(e);
    if (is_near(a, e, allowed)) continue;
    ++bad;
    const double excess = std::isfinite(a - e) ? std::abs(a - e) - allowed : HUGE_VAL;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (bad == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << bad << " of " << actual.size() << " elements differ; worst is [" << worst
         << "]: " << to_f64(actual[worst]) << ", expected " << to_f64(expected[worst])
         << ", difference " << to_f64(actual[worst]) - to_f64(expected[worst]) << ", allowed "
         << tolerance.abs + tolerance.eps * kEpsilon<T> * std::abs(to_f64(expected[worst]));
}

template <typename T, typename U>
testing::AssertionResult all_near(const BasicMatrix<T>& actual, const BasicMatrix<U>& expected,
                                  Tolerance tolerance) {
  if (actual.rows != expected.rows || actual.cols != expected.cols) {
    return testing::AssertionFailure() << actual.rows << "x" << actual.cols << ", expected "
                                       << expected.rows << "x" << expected.cols;
  }
  return all_near(actual.v, expected.v, tolerance);
}

}  // namespace sluiceway::test
