// Lowers the estimation bias of a pair of sparse projectors on a calibration gradient.
//
//   minimise  |b(G)|_F / |G|_F + beta (|P|_F + |Q|_F)      docs/algorithm.md section 2, divided
//                                                           by |G|_F: a loss scale changes nothing
//
// over the values (positions stay) with Adam, until the relative bias is at most `threshold` or
// max_steps are done. Keeps the best values found.
//
// The learner of a run is optim/subspace/learner.py, with torch's linear algebra; its memory is
// torch's, not the budget's. Those of tests are exact.
//
//   name    shape   dtype             layout                       access
//   g       m x n   f32 | bf16 | f16  row-major, stride            read
//   p       m x dm  f32               index i32[m, r], value       values read and written
//   q       n x dn  f32               index i32[n, r], value       values read and written
//
// Source: [HMT] Halko, Martinsson, Tropp, arXiv 0909.4061.
// Memory: everything is in the memory of the stream's device. On a CUDA device the input must have
//         been written before the call, which does not wait for `stream`; the results are there
//         when it returns.
// Cost:   a step of learning takes 4 r m n flop for G Q and G^T P, 4 r d (m + n) for the masked
//         products, about 10 d^3 for products of cores, r^2 (m + n) for the Gram matrices.
// Errors: those of the learner; some values may then have changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

struct LearnOptions {
  double threshold = 0;
  int max_steps = 100;
  double beta = 1e-4;
  double learning_rate = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;  // Outside the square root.
};

struct LearnOutcome {
  double bias_before = 0;  // Relative: |b(G)|_F / |G|_F.
  double bias_after = 0;
  int steps = 0;
};

// One projector's rows: fixed positions, and the values that learning changes.
struct LearnableRows {
  const std::int32_t* index = nullptr;
  std::span<float> value;  // rows * nnz
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t nnz = 0;
};

// Columns of a range finder beyond the requested ones, and its power iterations.
inline constexpr std::int64_t kExtraDirections = 8;
inline constexpr int kPowerIterations = 2;

// Returns how many columns the range finder of an m x n gradient has.
inline std::int64_t range_columns(std::int64_t m, std::int64_t n, std::int64_t p_cols,
                                  std::int64_t q_cols) noexcept {
  return std::min({m, n, std::max(p_cols, q_cols) + kExtraDirections});
}

// Flop of leading_directions() for an m x n gradient: its products with the gradient, then about 9
// k^2 for each row of both sides and of the small eigenproblem, which is k columns wide.
inline double leading_directions_flop(std::int64_t m, std::int64_t n, std::int64_t p_cols,
                                      std::int64_t q_cols) noexcept {
  const auto rows = static_cast<double>(m), cols = static_cast<double>(n);
  const auto k = static_cast<double>(range_columns(m, n, p_cols, q_cols));
  return 4 * (kPowerIterations + 1) * rows * cols * k + 9 * (rows + cols + k) * k * k;
}

// Upper bound of the device bytes that torch uses in leading_directions(): copies of the gradient,
// then arrays as long as both sides together. Measured on the host over shapes from 16 x 4096 to
// 2048 x 2048, f from 1/16 to 1, on several processors: the work space of LAPACK differs.
inline std::uint64_t leading_directions_bytes(std::int64_t m, std::int64_t n, std::int64_t p_cols,
                                              std::int64_t q_cols) noexcept {
  const auto k = static_cast<double>(range_columns(m, n, p_cols, q_cols));
  const double elems = static_cast<double>(m) * static_cast<double>(n);
  const double arrays = 4.2 * k * static_cast<double>(m + n) + 1.5 * k * k;
  return static_cast<std::uint64_t>(std::max(6 * elems, 4 * (elems + arrays)));
}

// The same bound for learn(), with r = nnz nonzeros a row: measured from 16 x 4096 to 1024 x 64.
inline std::uint64_t learn_bytes(std::int64_t m, std::int64_t n, std::int64_t p_cols,
                                 std::int64_t q_cols, std::int64_t nnz) noexcept {
  const auto dm = static_cast<double>(p_cols), dn = static_cast<double>(q_cols);
  const auto r = static_cast<double>(nnz);
  const double elems = static_cast<double>(m) * static_cast<double>(n);
  return static_cast<std::uint64_t>(20.5 * elems + 16 * r * r * static_cast<double>(m + n) +
                                    4.6 * (dm * dm + dn * dn) + 40 * dm * dn);
}

class ProjectorLearner {
 public:
  virtual ~ProjectorLearner() = default;

  // Writes orthonormal bases of the p.cols leading left and q.cols leading right singular
  // directions of g, by a randomised range finder with two power iterations [HMT] algorithm 4.4.
  // Either may be empty. `seed` keys its random start. Cost: leading_directions_flop().
  virtual void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                                  std::uint64_t seed, StreamRef stream) = 0;

  virtual LearnOutcome learn(const AnyMatrix& g, const LearnableRows& p, const LearnableRows& q,
                             const LearnOptions& options, StreamRef stream) = 0;
};

}  // namespace sluiceway
