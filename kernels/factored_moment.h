// A second moment kept as the means of its rows and columns, m + n floats instead of m n.
//
//   v_r <- b2 v_r + (1 - b2) f^2 mean_j x^2,  v_c <- b2 v_c + (1 - b2) f^2 mean_i x^2
//   V_ij = v_r[i] v_c[j] / mean(v_r)                       [Adafactor] algorithm 4
//   a_i b_j = sqrt(V_ij / (1 - b2^t)) / f                  roots, in units of x before f
//
//   name        elements   dtype   access
//   means       m, n       f32     written: of x^2; if a moment advances, its roots a, b
//   from, to    m, n       f32     read, written; of rows and of columns; empty: no moment
//   core        dm x dn    f32     read: what was taken from the gradient; empty: nothing was
//   verdict     1                  steps read, all but rms written; null: nothing is judged
//   scan        1                  written: overflow_scan() of x, by mean_squares(); null: no scan
//
// mean_squares() (residual.h) and residual_form() make the means and use them. They judge the
// verdict first, which sets `trains` and `alpha`. With a verdict the moment advances only if the
// residual trains; then t is `steps` + 1, and `steps` becomes t. Otherwise the moment stays as it
// is, and the means do not become roots. Without a verdict the moment advances as step t. A moment
// that is not finite has infinite roots for rows and roots of 1 for columns, so a quotient by their
// product is 0, as with AdamW's whole moment. A moment of zeros has roots of zero.
//
// Numerics: f32 in store, double between. Squares or moments count as finite while their sum is
//           below 2^127. The CPU adds mean(v_r) up from the new moment, in ascending order; a
//           device computes it from the sums of the old moment and of all squares, block by block
//           in a fixed order. Roots agree within one unit in the last place.
// Aliasing: `to` may be `from`; nothing else overlaps.
// Errors:   InvalidArgument, naming both shapes; nothing was written.
// Cost:     reads `from` twice, writes `to` and the roots; no launch beside those for the means.
// Source:   Shazeer and Stern, arXiv 1804.04235.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/view.h"
#include "kernels/factored_roots.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual_verdict.h"

namespace sluiceway {

struct FactoredMoment {
  std::span<float> row, col;

  // Rows first, then columns.
  static FactoredMoment of(std::span<float> both, std::int64_t rows) noexcept {
    const auto count = static_cast<std::size_t>(rows);
    return {both.first(count), both.subspan(count)};
  }
  bool empty() const noexcept { return row.empty() && col.empty(); }
};

struct MomentStep {
  double beta2 = 0;
  double eps = 0;
  double factor = 1;      // f
  std::int64_t step = 1;  // t, where no verdict knows it.
};

// Means, and what is done with them as soon as they are known.
struct MeansPass {
  FactoredMoment means;
  ResidualVerdict* verdict = nullptr;
  double share = 0;  // A residual below this share of the core's norm is rounding: no training.
  double lr = 0;
  MatrixView<float> core = {};
  FactoredMoment from = {}, to = {};
  MomentStep step = {};
  ScanResult* scan = nullptr;

  // The roots of a moment that has advanced; they lie in the memory of the means.
  FactoredRoots roots() const noexcept {
    return {means.row, means.col, static_cast<float>(step.eps / step.factor)};
  }
};

// Formulas that both halves share. |S| is |P S Q^T| where columns are orthonormal.

// Whether numbers >= 0 with this sum, and sums of them, are finite in f32; false for a NaN.
constexpr bool fits_f32(double sum) { return sum < 0x1p127; }
constexpr bool residual_trains(double elems, double sum_squares, double share,
                               double core_sum_squares) {
  return elems > 0 && fits_f32(sum_squares) && !(sum_squares < share * share * core_sum_squares);
}
// The new value of one element, or of a sum of elements.
constexpr double advanced(const MomentStep& step, double from, double mean) {
  return step.beta2 * from + (1 - step.beta2) * (step.factor * step.factor) * mean;
}
constexpr float advanced_mean(const MomentStep& step, float from, float mean) {
  return static_cast<float>(advanced(step, static_cast<double>(from), static_cast<double>(mean)));
}
constexpr double row_share(float row, double mean_row) {
  return mean_row > 0 ? static_cast<double>(row) / mean_row : 0;
}

inline void check_moments(const MeansPass& pass) {
  for (const FactoredMoment& moment : {pass.from, pass.to}) {
    SLUICEWAY_CHECK(
        (pass.from.empty() && pass.to.empty()) || (moment.row.size() == pass.means.row.size() &&
                                                   moment.col.size() == pass.means.col.size()),
        "mean_squares: moment of ", moment.row.size(), "x", moment.col.size(), ", expected ",
        pass.means.row.size(), "x", pass.means.col.size(), " as its means are");
  }
}

}  // namespace sluiceway

namespace sluiceway::cpu {

// Uses means that are known already; scans nothing.
void use_means(const MeansPass& pass);

}  // namespace sluiceway::cpu
