// fp8_image.h in double, one element and one code at a time, which kernels must equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sluiceway::test {

inline double e4m3_value(unsigned code) {
  const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(mantissa, -9)
                                    : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
  return (code & 128) != 0 ? -size : size;
}

// Of two equally near, returns the even one.
inline unsigned nearest_e4m3(double x) {
  const unsigned sign = std::signbit(x) ? 128 : 0;
  if (!std::isfinite(x)) return sign | 127;
  unsigned nearest = 0;
  for (unsigned code = 1; code < 127; ++code) {
    const double found = std::abs(std::abs(x) - e4m3_value(code));
    const double best = std::abs(std::abs(x) - e4m3_value(nearest));
    if (found < best || (found == best && code % 2 == 0)) nearest = code;
  }
  return sign | nearest;
}

// Returns the exponent of a block's scale.
inline int fp8_exponent(std::span<const float> block) {
  double largest = 0;
  for (const float x : block) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  int exponent = -116;
  while (exponent < 119 && largest > std::ldexp(464, exponent)) ++exponent;
  return exponent;
}

inline std::vector<std::byte> reference_fp8_image(std::span<const float> values) {
  std::vector<std::byte> image;
  for (std::size_t tile = 0; tile < values.size(); tile += 2048) {
    const auto elements = values.subspan(tile, std::min<std::size_t>(2048, values.size() - tile));
    std::vector<int> exponents;
    for (std::size_t b = 0; b < 16; ++b) {
      const std::size_t first = std::min(elements.size(), 128 * b);
      exponents.push_back(fp8_exponent(
          elements.subspan(first, std::min<std::size_t>(128, elements.size() - first))));
      image.push_back(static_cast<std::byte>(exponents.back() + 127));
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      image.push_back(static_cast<std::byte>(
          nearest_e4m3(std::ldexp(static_cast<double>(elements[i]), -exponents[i / 128]))));
    }
  }
  return image;
}

inline std::vector<float> reference_fp8_values(std::span<const std::byte> image,
                                               std::size_t elements) {
  std::vector<float> values;
  for (std::size_t i = 0; i < elements; ++i) {
    const auto tile = image.subspan(i / 2048 * 2064);
    const int exponent = static_cast<int>(tile[i % 2048 / 128]) - 127;
    const double value = e4m3_value(static_cast<unsigned>(tile[16 + i % 2048]));
    values.push_back(static_cast<float>(std::ldexp(value, exponent)));
  }
  return values;
}

}  // namespace sluiceway::test
