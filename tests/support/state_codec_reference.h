// The formats of kernels/state_codec.h in double, from their definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/state_codec.h"

namespace sluiceway::test {

inline double top_of(Companding c) { return c == Companding::kSigned ? 127 : 255; }

// The magnitude of a code, as a share of the scale.
inline double share_of(Companding c, double code) {
  return std::pow(code / top_of(c), c == Companding::kSigned ? 4 : 8);
}

// The codes around a magnitude, given as a share of the scale, and the probability of the upper.
struct ExpectedCode {
  double below = 0;
  double up = 0;
};

inline ExpectedCode expected_code(Companding c, double share) {
  const double root = std::pow(share, c == Companding::kSigned ? 1.0 / 4 : 1.0 / 8);
  const double below = std::min(std::floor(root * top_of(c) + 1e-6), top_of(c) - 1);
  const double low = share_of(c, below), high = share_of(c, below + 1);
  return {below, std::clamp((share - low) / (high - low), 0.0, 1.0)};
}

}  // namespace sluiceway::test
