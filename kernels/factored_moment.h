// A second moment kept as the means of its rows and columns, m + n floats instead of m n.
//
//   v_r <- b2 v_r + (1 - b2) f^2 mean_j x^2,  v_c <- b2 v_c + (1 - b2) f^2 mean_i x^2
//   V_ij = v_r[i] v_c[j] / mean(v_r)                       [Adafactor] algorithm 4
//   a_i b_j = sqrt(V_ij / (1 - b2^t)) / f                  roots, in units of x before f
//
//   name        elements   dtype   access
//   from, to    m, n       f32     read, written; of rows and of columns
//   means       m, n       f32     read: of x^2; then they are the roots a, b
//   verdict     1                  read, `steps` written; null: the moment advances, as step t
//
// With a verdict the moment advances where the residual trains, t is one more than `steps`, and
// `steps` becomes t; where it does not, nothing is written and the roots are of no use.
// A moment that is not finite has roots whose product is: what is divided by it becomes 0, as with
// the whole moment of AdamW. One of zeros has roots of zero.
//
// Numerics: f32 in store, double between; mean(v_r) in ascending order on the CPU, by blocks in a
//           fixed order on a device: roots agree within one unit in the last place.
// Aliasing: `to` may be `from`; nothing else overlaps.
// Errors:   InvalidArgument, naming both shapes; nothing was written.
// Cost:     reads 2 (m + n) floats twice, writes 2 (m + n).
// Source:   Shazeer and Stern, arXiv 1804.04235.
#pragma once

#include <cstdint>
#include <span>

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
};

struct MomentStep {
  double beta2 = 0;
  double eps = 0;
  double factor = 1;      // f
  std::int64_t step = 1;  // t, where no verdict knows it.
};

// Formulas that both halves share.
constexpr float advanced_mean(const MomentStep& step, float from, float mean) {
  return static_cast<float>(step.beta2 * static_cast<double>(from) +
                            (1 - step.beta2) * (step.factor * step.factor) *
                                static_cast<double>(mean));
}
constexpr double row_share(float row, double mean_row) {
  return mean_row > 0 ? static_cast<double>(row) / mean_row : 0;
}
constexpr bool is_finite(double x) { return x - x == 0; }

inline void check_moment(const FactoredMoment& from, const FactoredMoment& means,
                         const FactoredMoment& to) {
  for (const FactoredMoment& other : {from, to}) {
    SLUICEWAY_CHECK(other.row.size() == means.row.size() && other.col.size() == means.col.size(),
                    "advance_moment: moment of ", other.row.size(), "x", other.col.size(),
                    ", expected ", means.row.size(), "x", means.col.size(), " as its means are");
  }
}

}  // namespace sluiceway

namespace sluiceway::cpu {

double mean(std::span<const float> x);
void advance_moment(const FactoredMoment& from, const FactoredMoment& means, const MomentStep& step,
                    const FactoredMoment& to);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream` and returns; all pointers are device pointers and stay valid until then.
// Unavailable where this build has no such half.
void advance_moment(const FactoredMoment& from, const FactoredMoment& means, const MomentStep& step,
                    const FactoredMoment& to, ResidualVerdict* verdict, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`: the only place that chooses a half. Returns the roots.
inline FactoredRoots advance_moment(const FactoredMoment& from, const FactoredMoment& means,
                                    const MomentStep& step, const FactoredMoment& to,
                                    ResidualVerdict* verdict, StreamRef stream) {
  if (!stream.is_host()) {
    cuda::advance_moment(from, means, step, to, verdict, stream);
  } else if (verdict == nullptr) {
    cpu::advance_moment(from, means, step, to);
  } else if (verdict->trains) {
    MomentStep counted = step;
    counted.step = verdict->steps + 1;
    cpu::advance_moment(from, means, counted, to);
    verdict->steps = counted.step;
  }
  return {means.row, means.col, static_cast<float>(step.eps / step.factor)};
}

}  // namespace sluiceway
