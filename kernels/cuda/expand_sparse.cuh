// P D Q^T of sparse projectors, computed by octets of its rows and passed to a sink
// (weight_sink.cuh).
//
// A block takes kRows rows. It computes Y = P_rows D for them in shared memory, with the rows
// interleaved, so that one gathered load per nonzero of Q serves all of them, and then goes along
// the columns of w.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared.cuh"

namespace sluiceway::cuda {

inline constexpr std::size_t kGatherBytes = std::size_t{48} << 10;  // Shared, at most.

// Loads an element of a matrix whose type only the host knows; all lanes take the same branch.
__device__ inline float load_any(const AnyMatrix& m, std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * m.stride + col;
  switch (m.dtype) {
    case DType::kF32:
      return static_cast<const float*>(m.data)[at];
    case DType::kF16:
      return to_float(static_cast<const f16*>(m.data)[at]);
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(m.data)[at]);
  }
  return 0.0F;
}

// (P D)[row][c]: adds the nonzeros in ascending order, fused.
__device__ inline float project_one(const SparseRows& p, const AnyMatrix& d, std::int64_t row,
                                    std::int64_t c) {
  float sum = 0.0F;
  for (std::int64_t k = 0; k < p.nnz; ++k) {
    const std::int64_t e = row * p.nnz + k;
    sum = fmaf(__ldg(p.value + e), load_any(d, __ldg(p.index + e), c), sum);
  }
  return sum;
}

// kRows adjacent values in shared memory; four are one load of 16 bytes.
template <int kRows>
__device__ inline void load_rows(const float* at, float (&y)[kRows]) {
  if constexpr (kRows == 4) {
    const float4 four = *reinterpret_cast<const float4*>(at);
    y[0] = four.x, y[1] = four.y, y[2] = four.z, y[3] = four.w;
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) y[r] = at[r];
  }
}

// Loads: contiguous rows of D; octets of w, 16 bytes a lane for a 16-bit type; indices and values
// of Q, the 8 r of an octet contiguous. Shared memory: Y, gathered at random, so about four lanes
// of a warp collide on a bank. Roof: the sink's bytes, 2 m n sizeof(w); 2 r m (n + dn) flop, and r
// m n / (32 kRows) gathering instructions. Without room for Y (kStaged is false) its elements are
// computed where they are needed, with r times the loads of D.
template <int kRows, bool kStaged, class Sink>
__global__ void expand_sparse(AnyMatrix d, SparseRows p, SparseRows q, std::int64_t items,
                              Sink sink) {
  auto* const staged = dynamic_shared<float>();
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const std::int64_t first = item * kRows;
    if constexpr (kStaged) {
      __syncthreads();  // Until all have read the previous rows.
      for (std::int64_t c = threadIdx.x; c < q.cols; c += blockDim.x) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          staged[c * kRows + r] = first + r < p.rows ? project_one(p, d, first + r, c) : 0.0F;
        }
      }
      __syncthreads();
    }
    // Whole warps take part: lanes beyond the last column run along with the others.
    const std::int64_t lane_col = threadIdx.x * kOctet, warp_col = threadIdx.x / 32 * 32 * kOctet;
    for (std::int64_t from = 0; from + warp_col < q.rows; from += kMaxThreads * kOctet) {
      const std::int64_t col = from + lane_col;
      const int count = octet_count(col, q.rows);
      typename Sink::Old old[kRows];
      sink.load(first, p.rows - first, col, count, old);
      float sum[kRows][kOctet] = {};
#pragma unroll
      for (int j = 0; j < kOctet; ++j) {
        for (std::int64_t k = 0; j < count && k < q.nnz; ++k) {
          const std::int64_t e = (col + j) * q.nnz + k;
          const std::int32_t c = __ldg(q.index + e);
          const float factor = __ldg(q.value + e);
          float y[kRows];
          if constexpr (kStaged) {
            load_rows(staged + c * kRows, y);
          } else {
            y[0] = project_one(p, d, first, c);
          }
#pragma unroll
          for (int r = 0; r < kRows; ++r) sum[r][j] = fmaf(factor, y[r], sum[r][j]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sink.take(first + r, col, first + r < p.rows ? count : 0, old[r], sum[r]);
      }
    }
  }
  sink.finish();
}

template <class Sink>
void run_expand_sparse(const char* name, const AnyMatrix& d, const SparseRows& p,
                       const SparseRows& q, const Sink& sink, GridLimits limits, StreamRef stream) {
  const auto run = [&](auto kernel, std::int64_t rows, std::size_t shared_bytes) {
    const std::int64_t items = (p.rows + rows - 1) / rows;
    const Shape shape{static_cast<unsigned>(limits.blocks(items)), kMaxThreads, shared_bytes};
    launch(name, kernel, shape, stream, d, p, q, items, sink);
  };
  const std::size_t row_bytes = static_cast<std::size_t>(q.cols) * sizeof(float);
  // noise_octet() takes these bytes.
  const std::size_t room = kGatherBytes - sizeof(uint4) * kMaxThreads;
  if (4 * row_bytes <= room) return run(Kernel<expand_sparse<4, true, Sink>>(), 4, 4 * row_bytes);
  if (row_bytes <= room) return run(Kernel<expand_sparse<1, true, Sink>>(), 1, row_bytes);
  run(Kernel<expand_sparse<1, false, Sink>>(), 1, 0);
}

}  // namespace sluiceway::cuda
