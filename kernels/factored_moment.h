// A second moment kept as the means of its rows and columns, m + n floats instead of m n.
//
//   v_r <- b2 v_r + (1 - b2) f^2 mean_j x^2,  v_c <- b2 v_c + (1 - b2) f^2 mean_i x^2
//   V_ij = v_r[i] v_c[j] / mean(v_r)                       [Adafactor] algorithm 4
//   a_i b_j = sqrt(V_ij / (1 - b2^t)) / f                  roots, in units of x before f
//
//   name        elements   dtype   access
//   means       m, n       f32     read: of x^2; where a moment advances they become the roots a, b
//   from, to    m, n       f32     read, written; of rows and of columns; empty: no moment
//   verdict     1                  core read, the rest written; null: nothing is judged
//
// A verdict is judged first, by the formula of residual.h: `trains` and `alpha`. With one the
// moment advances where the residual trains, t is one more than `steps`, and `steps` becomes t;
// where it does not, nothing is written and the roots are of no use. Without one the moment
// advances, as step t. A moment that is not finite has roots whose product is: what is divided by
// it becomes 0, as with the whole moment of AdamW. One of zeros has roots of zero.
//
// Numerics: f32 in store, double between; mean(v_r) in ascending order on the CPU, by blocks in a
//           fixed order on a device: roots agree within one unit in the last place.
// Aliasing: `to` may be `from`; nothing else overlaps.
// Errors:   InvalidArgument, naming both shapes; nothing was written.
// Cost:     reads 2 (m + n) floats twice, writes 2 (m + n). Two launches on a device, one of which
//           mean_squares() and residual_form() share.
// Source:   Shazeer and Stern, arXiv 1804.04235.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"
#include "kernels/factored_roots.h"
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
  double share = 0;  // Of the core's norm; a residual below it is rounding and does not train.
  double lr = 0;
  FactoredMoment from = {}, to = {};
  MomentStep step = {};

  // Of a moment that advances; in the memory of the means.
  FactoredRoots roots() const noexcept {
    return {means.row, means.col, static_cast<float>(step.eps / step.factor)};
  }
};

// Formulas that both halves share. |S| is |P S Q^T| where columns are orthonormal.
constexpr bool is_finite(double x) { return x - x == 0; }
constexpr bool residual_trains(double mean_row, double mean_col, double elems, double share,
                               double core_sum_squares) {
  return is_finite(mean_row) && is_finite(mean_col) &&
         !(mean_row * elems < share * share * core_sum_squares);
}
constexpr float advanced_mean(const MomentStep& step, float from, float mean) {
  return static_cast<float>(step.beta2 * static_cast<double>(from) +
                            (1 - step.beta2) * (step.factor * step.factor) *
                                static_cast<double>(mean));
}
constexpr double row_share(float row, double mean_row) {
  return mean_row > 0 ? static_cast<double>(row) / mean_row : 0;
}

inline void check_moments(const MeansPass& pass) {
  for (const FactoredMoment& moment : {pass.from, pass.to}) {
    SLUICEWAY_CHECK(
        (pass.from.empty() && pass.to.empty()) || (moment.row.size() == pass.means.row.size() &&
                                                   moment.col.size() == pass.means.col.size()),
        "use_means: moment of ", moment.row.size(), "x", moment.col.size(), ", expected ",
        pass.means.row.size(), "x", pass.means.col.size(), " as its means are");
  }
}

}  // namespace sluiceway

namespace sluiceway::cpu {

void use_means(const MeansPass& pass);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream` and returns; all pointers are device pointers and stay valid until then.
// Unavailable where this build has no such half.
void use_means(const MeansPass& pass, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Of means that are there. On the device of `stream`: the only place that chooses a half.
inline void use_means(const MeansPass& pass, StreamRef stream) {
  check_moments(pass);
  if (stream.is_host()) return cpu::use_means(pass);
  cuda::use_means(pass, stream);
}

}  // namespace sluiceway
