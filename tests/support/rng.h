// Seeded random inputs: the same seed gives the same test on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/matrix.h"

namespace sluiceway::test {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }  // 64 random bits.

  std::int64_t below(std::int64_t bound) {  // In [0, bound).
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound));
  }

  double uniform(double low = 0.0, double high = 1.0) {  // In [low, high).
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  }

  double normal() {  // Box-Muller: std::normal_distribution differs between libraries.
    constexpr double kTwoPi = 6.283185307179586;
    return std::sqrt(-2.0 * std::log(1.0 - uniform())) * std::cos(kTwoPi * uniform());
  }

  template <typename T = float>
  std::vector<T> vector(std::int64_t elems, double scale = 1.0) {
    std::vector<T> out(static_cast<std::size_t>(elems));
    for (T& x : out) x = from_float<T>(static_cast<float>(scale * normal()));
    return out;
  }

  Matrix matrix(std::int64_t rows, std::int64_t cols, double scale = 1.0) {
    Matrix out(rows, cols);
    out.v = vector(rows * cols, scale);
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace sluiceway::test
