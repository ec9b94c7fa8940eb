// S <- beta S + P^T G Q for sparse projectors, by panels of rows of G:
//
//   Y = G_panel Q             gathered by columns of Q
//   S <- S + P_panel^T Y      row a of S takes rows i of Y where P has (i, a), i ascending
//
// Y is in the stream's scratch, as many rows as fit, so a gradient of 4096 rows takes four panels
// at dn = 1024. Each element of S is summed by one thread, in the order of the rows of G: no
// atomics, and no cut into panels shows in the bits.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/project_columns.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream_scratch.cuh"

namespace sluiceway::cuda {

inline constexpr int kScatterCols = 4;            // Columns of S a thread, 256 apart.
inline constexpr unsigned kEntriesAtOnce = 1024;  // Of P that a block looks through at a time.

// A block has one row a of S, or 1024 columns of it. It looks through the panel's indices of P for
// a, 1024 at a time, as bits of ballots, and adds the rows of Y that it finds, in ascending order.
//
// Loads: indices, rows of Y and of S side by side, 128 bytes a warp. Roof: the second-level cache:
// r rows of Y a row of G, S once a panel, and dm times the panel's r indices.
__global__ void scatter_rows(MatrixView<float> s, float beta, SparseRows p,
                             MatrixView<const float> y, std::int64_t slices) {
  __shared__ unsigned found[kEntriesAtOnce / 32];
  const std::int64_t a = blockIdx.x / slices;
  const std::int64_t first_col = blockIdx.x % slices * kMaxThreads * kScatterCols + threadIdx.x;
  float sum[kScatterCols];
#pragma unroll
  for (int u = 0; u < kScatterCols; ++u) {
    const std::int64_t c = first_col + u * kMaxThreads;
    sum[u] = beta != 0.0F && c < s.cols ? __fmul_rn(beta, s.row(a)[c]) : 0.0F;
  }
  const std::int64_t entries = p.rows * p.nnz;
  for (std::int64_t from = 0; from < entries; from += kEntriesAtOnce) {
    __syncthreads();  // Readers of the bits before.
    for (unsigned at = threadIdx.x; at < kEntriesAtOnce; at += kMaxThreads) {
      const bool is = from + at < entries && __ldg(p.index + from + at) == a;
      const unsigned bits = __ballot_sync(kWholeWarp, is);
      if (at % 32 == 0) found[at / 32] = bits;
    }
    __syncthreads();
    for (unsigned word = 0; word < kEntriesAtOnce / 32; ++word) {
      for (unsigned bits = found[word]; bits != 0; bits &= bits - 1) {
        const std::int64_t e = from + 32 * word + (__ffs(static_cast<int>(bits)) - 1);
        const auto i = static_cast<std::int64_t>(static_cast<std::uint32_t>(e) /
                                                 static_cast<std::uint32_t>(p.nnz));
        const float factor = __ldg(p.value + e);
#pragma unroll
        for (int u = 0; u < kScatterCols; ++u) {
          const std::int64_t c = first_col + u * kMaxThreads;
          if (c < s.cols) sum[u] = fmaf(factor, y.row(i)[c], sum[u]);
        }
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kScatterCols; ++u) {
    const std::int64_t c = first_col + u * kMaxThreads;
    if (c < s.cols) s.row(a)[c] = sum[u];
  }
}

// The larger of the stream's scratch and the caller's holds Y.
template <typename T>
void run_compress_sparse(MatrixView<float> s, float beta, MatrixView<const T> g,
                         const SparseRows& p, const SparseColumns& q, std::span<float> scratch,
                         StreamRef stream) {
  if (s.elems() == 0) return;
  const StreamScratch piece(stream);
  const bool caller_has_more = scratch.size() > StreamScratch::capacity<float>();
  const auto room = static_cast<std::int64_t>(caller_has_more ? scratch.size()
                                                              : StreamScratch::capacity<float>());
  float* const rows_of_y = caller_has_more ? scratch.data() : piece.parts<float>();
  // 32-bit arithmetic finds the row of an entry of P.
  const std::int64_t most = (std::int64_t{1} << 31) / std::max<std::int64_t>(p.nnz, 1);
  const std::int64_t panel = std::clamp<std::int64_t>(room / s.cols, 1, most);
  const std::int64_t slices =
      (s.cols + kMaxThreads * kScatterCols - 1) / (kMaxThreads * kScatterCols);
  std::int64_t first = 0;
  do {  // Once even without a row: S is scaled.
    const std::int64_t rows = std::min(panel, g.rows - first);
    const MatrixView<float> y(rows_of_y, rows, s.cols);
    run_project_columns("compress", g.row_range(first, first + rows), q,
                        {rows_of_y, rows, s.cols, s.cols, DType::kF32}, stream);
    launch("compress", Kernel<scatter_rows>(),
           {static_cast<unsigned>(s.rows * slices), kMaxThreads}, stream, s,
           first == 0 ? beta : 1.0F, p.row_range(first, first + rows), y, slices);
    first += rows;
  } while (first < g.rows);
}

}  // namespace sluiceway::cuda
