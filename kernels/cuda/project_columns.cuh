// Y = G Q for a sparse Q by column: what both compress() and project_rows() need.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/expand_sparse.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared.cuh"

namespace sluiceway::cuda {

// Rounded to nearest even; all lanes take the same way.
__device__ inline void store_any(const AnyMatrix& m, std::int64_t row, std::int64_t col, float x) {
  const std::int64_t at = row * m.stride + col;
  switch (m.dtype) {
    case DType::kF32:
      static_cast<float*>(m.data)[at] = x;
      return;
    case DType::kF16:
      static_cast<f16*>(m.data)[at] = from_float<f16>(x);
      return;
    case DType::kBF16:
      static_cast<bf16*>(m.data)[at] = from_float<bf16>(x);
      return;
  }
}

// y[i][c] = sum of G[first + i][j] Q[j][c] over the nonzeros of column c, ascending. A block has
// kRows rows of G in shared memory, row beside row, so that one gathered load by a nonzero of Q
// serves all of them, and a slice of 256 columns c, one a thread.
//
// Loads: G by octets, 16 bytes a lane of a 16-bit type; the nonzeros of a column lie in a row,
// those of neighbouring lanes one list further. Roof: m n sizeof(T) bytes of G once a slice, all
// but the first from the second-level cache; 2 r m n flop; and r m n / (32 kRows) gathering
// instructions. Without room for the rows (kStaged is false) elements are gathered from the caches.
template <int kRows, bool kStaged, typename T>
__global__ void project_columns(MatrixView<const T> g, SparseColumns q, AnyMatrix y,
                                std::int64_t slices) {
  auto* const staged = dynamic_shared<float>();
  const std::int64_t first = blockIdx.x / slices * kRows;
  if constexpr (kStaged) {
    for (std::int64_t j = threadIdx.x * kOctet; j < g.cols; j += kMaxThreads * kOctet) {
      const int count = octet_count(j, g.cols);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float x[kOctet];
        load_values(g.row(first + r) + j, first + r < g.rows ? count : 0, x);
#pragma unroll
        for (int k = 0; k < kOctet; ++k) {
          if (k < count) staged[(j + k) * kRows + r] = x[k];
        }
      }
    }
    __syncthreads();
  }
  const std::int64_t c = blockIdx.x % slices * kMaxThreads + threadIdx.x;
  if (c >= q.cols) return;
  float sum[kRows] = {};
  for (std::int32_t e = __ldg(q.offset + c), end = __ldg(q.offset + c + 1); e < end; ++e) {
    const std::int64_t j = __ldg(q.row + e);
    const float factor = __ldg(q.value + e);
    float x[kRows];
    if constexpr (kStaged) {
      load_rows(staged + j * kRows, x);
    } else {
      x[0] = to_float(g.row(first)[j]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = fmaf(factor, x[r], sum[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r < y.rows) store_any(y, first + r, c, sum[r]);
  }
}

template <typename T>
void run_project_columns(const char* name, MatrixView<const T> g, const SparseColumns& q,
                         const AnyMatrix& y, StreamRef stream) {
  const std::int64_t slices = (q.cols + kMaxThreads - 1) / kMaxThreads;
  const auto run = [&](auto kernel, std::int64_t rows, std::size_t shared_bytes) {
    const std::int64_t blocks = (g.rows + rows - 1) / rows * slices;
    launch(name, kernel, {static_cast<unsigned>(blocks), kMaxThreads, shared_bytes}, stream, g, q,
           y, slices);
  };
  const std::size_t row_bytes = static_cast<std::size_t>(g.cols) * sizeof(float);
  if (4 * row_bytes <= kGatherBytes)
    return run(Kernel<project_columns<4, true, T>>(), 4, 4 * row_bytes);
  if (2 * row_bytes <= kGatherBytes)
    return run(Kernel<project_columns<2, true, T>>(), 2, 2 * row_bytes);
  if (row_bytes <= kGatherBytes) return run(Kernel<project_columns<1, true, T>>(), 1, row_bytes);
  run(Kernel<project_columns<1, false, T>>(), 1, 0);
}

}  // namespace sluiceway::cuda
