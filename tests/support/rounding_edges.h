// f32 values at which rounding to a 16-bit type is decided.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/matrix.h"

namespace sluiceway::test {

// Returns every finite code of T, the midpoint above it with both its neighbours, and NaN.
template <typename T>
std::vector<float> rounding_edges() {
  std::vector<float> x;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const float low = to_float(T{static_cast<std::uint16_t>(code)});
    const float high = to_float(T{static_cast<std::uint16_t>(code + 1)});
    x.push_back(low);
    if (!std::isfinite(low) || !std::isfinite(high) || std::signbit(low) != std::signbit(high)) {
      continue;
    }
    const float middle = static_cast<float>((to_f64(low) + to_f64(high)) / 2);
    x.insert(x.end(), {middle, std::nextafter(middle, low), std::nextafter(middle, high)});
  }
  for (const float big : {65519.996F, 65520.0F, 65536.0F, 3.3895314e38F, 3.3961775e38F}) {
    x.insert(x.end(), {big, -big});
  }
  for (const std::uint32_t nan : {0x7F800001U, 0xFF80FFFFU, 0x7FFFFFFFU, 0x7FC00001U}) {
    x.push_back(std::bit_cast<float>(nan));
  }
  return x;
}

}  // namespace sluiceway::test
