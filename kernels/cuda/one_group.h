// Projectors of one group that keeps many columns, such as svd makes, are dense matrices. A vendor
// library multiplies by them (cuda/dense.h), since the kernels for blocks recompute a small product
// for each tile, which is cheap only while a group is small.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/dense.h"

namespace sluiceway::cuda {

// Groups that keep at least this many columns are dense.
inline constexpr std::int64_t kDenseKept = 64;

inline bool is_dense(const BlockRows& p) { return p.groups() == 1 && p.last_kept >= kDenseKept; }

// Rows [first, first + rows) of p as a factor.
inline Factor dense_factor(const BlockRows& p, std::int64_t first, std::int64_t rows,
                           bool transposed = false) {
  return {MatrixView<const float>(p.value + first * p.kept, rows, p.last_kept, p.kept), transposed};
}
inline Factor dense_factor(const BlockRows& p, bool transposed = false) {
  return dense_factor(p, 0, p.rows, transposed);
}

}  // namespace sluiceway::cuda
