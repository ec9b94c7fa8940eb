// A second moment kept as the means of its rows and columns, m + n floats instead of m n.
//
//   v_r <- b2 v_r + (1 - b2) mean_j x^2,  v_c <- b2 v_c + (1 - b2) mean_i x^2
//   V_ij = v_r[i] v_c[j] / mean(v_r)                       [Adafactor] algorithm 4
//
// Source: Shazeer and Stern, arXiv 1804.04235. Numerics: f32 in store, double between.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/factored_roots.h"

namespace sluiceway {

struct FactoredMoment {
  std::span<float> row, col;

  // Rows first, then columns.
  static FactoredMoment of(std::span<float> both, std::int64_t rows) noexcept {
    const auto count = static_cast<std::size_t>(rows);
    return {both.first(count), both.subspan(count)};
  }
};

// to <- beta2 from + (1 - beta2) factor^2 means; `means` are of the raw gradient, `to` may be
// `from`.
void advance(const FactoredMoment& from, const FactoredMoment& means, double beta2, double factor,
             const FactoredMoment& to);

// Writes row[i] col[j] = sqrt(V_ij / (1 - beta2^step)) / divisor to `out`. Infinite for a moment
// that is: what is divided by it becomes 0, as with the whole moment of AdamW.
FactoredRoots roots_of(const FactoredMoment& moment, double beta2, std::int64_t step,
                       double divisor, double eps, const FactoredMoment& out);

double mean(std::span<const float> x);

}  // namespace sluiceway
