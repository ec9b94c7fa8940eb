// The sums of two vectors, one of rows and one of columns, over a grid: reduce.cuh, twice.
#pragma once

#include "kernels/cuda/reduce.cuh"

namespace sluiceway::cuda {

struct RowColSum {
  double row = 0.0, col = 0.0;
};

inline constexpr GridLimits kRowColLimits{1, 256};  // On any device: equal bits on all.

inline unsigned row_col_blocks(std::int64_t elems) {
  return kRowColLimits.blocks((elems + kMaxThreads - 1) / kMaxThreads);
}

// Of element(i) for i < elems; the first `rows` are of rows. A thread has one of each 65,536: 128
// bytes side by side a warp.
template <class Element>
__device__ RowColSum sum_of_thread(std::int64_t rows, std::int64_t elems, const Element& element) {
  RowColSum sum;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elems; i += step) {
    const auto x = static_cast<double>(element(i));
    sum.row += i < rows ? x : 0.0;
    sum.col += i < rows ? 0.0 : x;
  }
  return sum;
}

// Called by every thread, once. True in one thread of the grid, which has the total.
__device__ inline bool sum_of_grid(RowColSum mine, unsigned* ticket, RowColSum* parts,
                                   RowColSum& total) {
  const RowColSum part{block_sum(mine.row), block_sum(mine.col)};
  if (threadIdx.x == 0) parts[blockIdx.x] = part;
  if (!is_last_block(ticket)) return false;
  RowColSum all;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
    all.row += parts[i].row;
    all.col += parts[i].col;
  }
  total = {block_sum(all.row), block_sum(all.col)};
  return threadIdx.x == 0;
}

}  // namespace sluiceway::cuda
