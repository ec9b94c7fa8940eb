// S <- beta S + P^T G Q for sparse projectors, by panels of rows of G:
//
//   Y = G_panel Q             project_columns.h
//   S <- S + P_panel^T Y      row a of S takes rows i of Y where P has (i, a), i ascending
//
// Y lies in scratch, as many rows as fit: with dn = 1024 the stream's own scratch takes a gradient
// of 4096 rows in four panels. One thread sums each element of S, in the order of the rows of G.
// There are no atomics, and the division into panels does not change the bits.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/view.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/project_columns.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/projector_shapes.h"

namespace sluiceway::cuda {

inline constexpr int kScatterCols = 4;            // Columns of S a thread, 256 apart.
inline constexpr unsigned kEntriesAtOnce = 1024;  // Entries of P that a block searches at a time.

// A block has one row a of S, or 1024 columns of it. It searches the panel's indices of P for a,
// 1024 at a time, as the bits of ballots, and adds the rows of Y that it finds, in ascending order.
//
// Loads: contiguous indices and contiguous rows of Y and S, 128 bytes a warp. Roof: the
// second-level cache: r rows of Y for each row of G, S once a panel, and dm times the panel's r
// indices.
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
    __syncthreads();  // Until all have read the previous bits.
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

// Rows of Y made at a time, where they lie, and the scratch left for the product that makes them.
struct SparsePanel {
  float* y;
  std::int64_t rows;
  std::span<float> rest;

  static SparsePanel in(std::span<float> scratch, DType g, const SparseColumns& q) {
    const std::int64_t elems = static_cast<std::int64_t>(scratch.size()) - 4 * kPadElems;
    const std::int64_t rows = elems / (q.cols + library_row_elems(g, q, DType::kF32));
    ScratchCutter cut(scratch);
    float* const y = cut.take(rows * q.cols);
    return {y, rows, cut.rest()};
  }
};

inline void run_compress_sparse(MatrixView<float> s, float beta, const AnyMatrix& g,
                                const SparseRows& p, const SparseColumns& q,
                                std::span<float> scratch, StreamRef stream) {
  if (s.elems() == 0) return;
  // The larger of the caller's and the stream's scratch. A wide G leaves the stream's to the
  // library.
  std::optional<StreamScratch> piece;
  if (!is_wide(q.rows) && scratch.size() < StreamScratch::capacity<float>()) {
    piece.emplace(stream);
    scratch = {piece->parts<float>(), StreamScratch::capacity<float>()};
  }
  const SparsePanel panel = SparsePanel::in(scratch, g.dtype, q);
  // 32-bit arithmetic computes the row of an entry of P.
  const std::int64_t most = (std::int64_t{1} << 31) / std::max<std::int64_t>(p.nnz, 1);
  const std::int64_t at_once = std::clamp<std::int64_t>(panel.rows, 1, most);
  const std::int64_t slices =
      (s.cols + kMaxThreads * kScatterCols - 1) / (kMaxThreads * kScatterCols);
  std::int64_t first = 0;
  do {  // Runs once even without rows, to scale S.
    const std::int64_t rows = std::min(at_once, g.rows - first);
    const MatrixView<float> y(panel.y, rows, s.cols);
    project_columns("compress", g.row_range(first, first + rows), q,
                    {panel.y, rows, s.cols, s.cols, DType::kF32}, panel.rest, stream);
    launch("compress", Kernel<scatter_rows>(),
           {static_cast<unsigned>(s.rows * slices), kMaxThreads}, stream, s,
           first == 0 ? beta : 1.0F, p.row_range(first, first + rows), y, slices);
    first += rows;
  } while (first < g.rows);
}

}  // namespace sluiceway::cuda
