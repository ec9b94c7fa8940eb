// Compares two runs: every weight, at every look.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/support/matrix.h"

namespace sluiceway::test {

struct Distance {
  double most = 0;   // Largest difference of two elements, at any look.
  double share = 0;  // Share of the elements that differ at the last look.
};

// Takes weights with `looks` each, one after another, where `last` is the last look. Checks that no
// element differs by more than its `tolerance` and that every weight was trained. Records what it
// returns.
template <typename Tolerance>
Distance expect_alike(const std::vector<Matrix>& expected, const std::vector<Matrix>& found,
                      std::size_t looks, std::size_t last, const Tolerance& tolerance) {
  Distance apart;
  std::size_t differ = 0, elems = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double beyond = 0;
    for (std::size_t j = 0; j < expected[i].v.size(); ++j) {
      const double e = to_f64(expected[i].v[j]), f = to_f64(found[i].v[j]);
      apart.most = std::max(apart.most, std::abs(e - f));
      if (!(std::abs(e - f) <= tolerance(e))) beyond = std::max(beyond, std::abs(e - f));
      if (i % looks != last) continue;
      ++elems;
      differ += e == f ? 0 : 1;
    }
    EXPECT_EQ(beyond, 0) << "weight " << i / looks << ", look " << i % looks;
  }
  apart.share = static_cast<double>(differ) / static_cast<double>(elems);
  testing::Test::RecordProperty("most", std::to_string(1e9 * apart.most) + "e-9");
  testing::Test::RecordProperty("differing", std::to_string(apart.share));
  for (std::size_t i = 0; i < expected.size(); i += looks) {
    EXPECT_NE(expected[i], expected[i + last]) << "nothing was trained";
  }
  return apart;
}

}  // namespace sluiceway::test
