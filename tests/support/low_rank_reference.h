// The definitions of low_rank.h, one element at a time by std::fma, which kernels must equal.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/low_rank.h"

namespace sluiceway::test {

// x + (L^T R)_ij.
inline float reference_added(float x, const LowRank& product, std::int64_t i, std::int64_t j) {
  for (std::int64_t s = 0; s < product.left.rows; ++s) {
    x = std::fma(product.left.row(s)[i], product.right.row(s)[j], x);
  }
  return x;
}

}  // namespace sluiceway::test
