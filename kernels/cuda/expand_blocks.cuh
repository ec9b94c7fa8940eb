// P D Q^T of block projectors, computed by octets of its rows and passed to a sink
// (weight_sink.cuh).
//
// One row group of P needs T = D_g Q^T, kept x n, and then P_g T. A block takes a slab of rows of a
// group and some columns. It computes T for them in shared memory, at most kMaxDepth rows at a
// time, and then goes down the rows, so that D and Q are read once a slab and w is touched once.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared.cuh"

namespace sluiceway::cuda {

inline constexpr unsigned kExpandThreads = 128;
inline constexpr int kExpandRows = 4;  // Rows of a thread at a time: each load of T serves four.
inline constexpr int kFillRows = 8;  // Rows of T that a thread computes at a time, for one column.
inline constexpr std::int64_t kExpandElems = 8192;  // Elements of T in shared memory: 32 KiB.
inline constexpr std::int64_t kMaxDepth = 256;      // With so many, 32 columns fit.
inline constexpr std::int64_t kSlabRows = 256;

// How the work is divided; all counts are for the whole grid.
struct ExpandCut {
  int depth;   // Kept columns of P at once, a multiple of 4.
  int octets;  // Octets across the columns of a block; a power of two.
  std::int64_t col_tiles, slab_rows, slabs, items;

  static ExpandCut of(const BlockRows& p, const BlockRows& q) {
    const std::int64_t depth = std::clamp<std::int64_t>((p.kept + 3) / 4 * 4, 4, kMaxDepth);
    const auto fit = std::bit_floor(static_cast<std::uint64_t>(kExpandElems / depth / kOctet));
    const auto wanted = std::bit_ceil(static_cast<std::uint64_t>((q.rows + kOctet - 1) / kOctet));
    const auto octets = static_cast<std::int64_t>(
        std::max<std::uint64_t>(1, std::min({fit, wanted, std::uint64_t{kExpandThreads}})));
    const std::int64_t step = kExpandThreads / octets * kExpandRows;
    // With a single depth, T serves all rows of a slab; with several, it would be computed again
    // for each step.
    const std::int64_t slab_rows = p.kept > depth ? step : std::max(step, kSlabRows);
    const std::int64_t col_tiles = (q.rows + octets * kOctet - 1) / (octets * kOctet);
    const std::int64_t slabs = (std::min(p.block, p.rows) + slab_rows - 1) / slab_rows;
    return {static_cast<int>(depth),       static_cast<int>(octets), col_tiles, slab_rows, slabs,
            p.groups() * slabs * col_tiles};
  }

  constexpr int cols() const { return octets * kOctet; }
};

// Returns where T[a][j] lies. The two halves of an octet lie apart, so that neighbouring lanes that
// load 16 bytes use neighbouring banks.
__device__ inline int tile_place(int a, int j, int cols) {
  return a * cols + (j & 4) / 4 * (cols / 2) + j / 8 * 4 + j % 4;
}

// Loads four elements, starting at a multiple of four, as one load.
template <typename D>
__device__ inline void load_quad(const D* p, float (&x)[4]) {
  if constexpr (sizeof(D) == 4) {
    const float4 four = *reinterpret_cast<const float4*>(p);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
    const uint2 two = *reinterpret_cast<const uint2*>(p);
    x[0] = to_float(D{static_cast<std::uint16_t>(two.x)});
    x[1] = to_float(D{static_cast<std::uint16_t>(two.x >> 16)});
    x[2] = to_float(D{static_cast<std::uint16_t>(two.y)});
    x[3] = to_float(D{static_cast<std::uint16_t>(two.y >> 16)});
  }
}

// Tells whether the rows of D and of Q's values, and the groups in them, start at multiples of
// four.
template <typename D>
__device__ inline bool has_quads(MatrixView<const D> d, const BlockRows& q) {
  return q.kept % 4 == 0 && d.stride % 4 == 0 && on_16_bytes(q.value) &&
         reinterpret_cast<std::uintptr_t>(d.data) % (4 * sizeof(D)) == 0;
}

// sum[u] = sum over c < kept of D[row u][c] Q[j][c], with c ascending, fused, and four elements
// loaded at a time if `quads`.
template <typename D>
__device__ inline void add_kept(const D* d_at, std::int64_t stride, int rows, const float* q_row,
                                std::int64_t kept, bool quads, float (&sum)[kFillRows]) {
  std::int64_t c = 0;
  for (; quads && c + 4 <= kept; c += 4) {
    float factor[4];
    load_quad(q_row + c, factor);
#pragma unroll
    for (int u = 0; u < kFillRows; ++u) {
      if (u >= rows) break;
      float x[4];
      load_quad(d_at + u * stride + c, x);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[u] = fmaf(x[k], factor[k], sum[u]);
    }
  }
  for (; c < kept; ++c) {
    const float factor = __ldg(q_row + c);
#pragma unroll
    for (int u = 0; u < kFillRows; ++u) {
      if (u < rows) sum[u] = fmaf(to_float(d_at[u * stride + c]), factor, sum[u]);
    }
  }
}

// Computes T[a][j] for `depth` kept columns from row `d_row` of D on, and for the columns from
// `col` on. A thread has one column and kFillRows rows, so it reads a row of Q once for all of
// them.
template <typename D>
__device__ void fill_tile(MatrixView<const D> d, const BlockRows& q, std::int64_t d_row, int depth,
                          std::int64_t col, const ExpandCut& cut, float* tile) {
  const int cols = cut.cols();
  const std::int64_t groups = q.groups();
  const bool quads = has_quads(d, q);
  const int pieces = (depth + kFillRows - 1) / kFillRows;
  for (int e = static_cast<int>(threadIdx.x); e < cols * pieces; e += blockDim.x) {
    const int j = e % cols, a = e / cols * kFillRows;
    const int rows = min(depth - a, kFillRows);
    float sum[kFillRows] = {};
    if (col + j < q.rows) {
      const auto h = static_cast<std::int64_t>(static_cast<std::uint32_t>(col + j) /
                                               static_cast<std::uint32_t>(q.block));
      const std::int64_t kept = h + 1 == groups ? q.last_kept : q.kept;
      add_kept(d.row(d_row + a) + h * q.kept, d.stride, rows, q.value + (col + j) * q.kept, kept,
               quads, sum);
    }
#pragma unroll
    for (int u = 0; u < kFillRows; ++u) {
      if (u < rows) tile[tile_place(a + u, j, cols)] = sum[u];
    }
  }
}

// sum[r] += P[row r][a0 .. a0 + depth) T, for an octet of columns.
__device__ inline void add_product(const float* const (&p_rows)[kExpandRows], int depth,
                                   const float* tile, int octet, int cols,
                                   float (&sum)[kExpandRows][kOctet]) {
#pragma unroll 2
  for (int a = 0; a < depth; ++a) {
    const auto* const low = reinterpret_cast<const float4*>(tile + a * cols + 4 * octet);
    const auto* const high =
        reinterpret_cast<const float4*>(tile + a * cols + cols / 2 + 4 * octet);
    const float4 x = *low, y = *high;
#pragma unroll
    for (int r = 0; r < kExpandRows; ++r) {
      const float factor = __ldg(p_rows[r] + a);
      sum[r][0] = fmaf(factor, x.x, sum[r][0]);
      sum[r][1] = fmaf(factor, x.y, sum[r][1]);
      sum[r][2] = fmaf(factor, x.z, sum[r][2]);
      sum[r][3] = fmaf(factor, x.w, sum[r][3]);
      sum[r][4] = fmaf(factor, y.x, sum[r][4]);
      sum[r][5] = fmaf(factor, y.y, sum[r][5]);
      sum[r][6] = fmaf(factor, y.z, sum[r][6]);
      sum[r][7] = fmaf(factor, y.w, sum[r][7]);
    }
  }
}

// Loads: octets of w, 16 bytes a lane for a 16-bit type, up to 2 KiB of contiguous elements of a
// row, four rows at once, issued before the products, which hide their latency; P by whole warps at
// one address; D and Q from the caches. Shared memory: T, two loads of 16 bytes without bank
// conflicts for 32 fused multiply-adds. Roof: the sink's bytes, 2 m n sizeof(w); 2 k m (n + dn)
// flop for blocks that keep k columns, which limit first above k = 12 or so.
template <typename D, class Sink>
__global__ void expand_blocks(MatrixView<const D> d, BlockRows p, BlockRows q, ExpandCut cut,
                              Sink sink) {
  auto* const tile = dynamic_shared<float>();
  const int octet = static_cast<int>(threadIdx.x) % cut.octets;
  const std::int64_t lane_row = threadIdx.x / static_cast<unsigned>(cut.octets) * kExpandRows;
  const std::int64_t step = kExpandThreads / static_cast<unsigned>(cut.octets) * kExpandRows;
  for (std::int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const std::int64_t col = item % cut.col_tiles * cut.cols();
    const std::int64_t slab = item / cut.col_tiles % cut.slabs;
    const std::int64_t group = item / cut.col_tiles / cut.slabs;
    const std::int64_t kept = group + 1 == p.groups() ? p.last_kept : p.kept;
    const std::int64_t first = group * p.block + slab * cut.slab_rows;
    const std::int64_t group_end = min((group + 1) * p.block, p.rows);
    const std::int64_t end = min(first + cut.slab_rows, group_end);
    const int count = octet_count(col + octet * kOctet, q.rows);
    for (std::int64_t row = first; row < end; row += step) {
      const std::int64_t mine = row + lane_row;
      typename Sink::Old old[kExpandRows];
      sink.load(mine, end - mine, col + octet * kOctet, count, old);
      float sum[kExpandRows][kOctet] = {};
      for (std::int64_t a = 0; a < kept; a += cut.depth) {
        const int depth = static_cast<int>(min(kept - a, std::int64_t{cut.depth}));
        if (row == first || kept > cut.depth) {
          __syncthreads();  // Until all have read the previous tile.
          fill_tile(d, q, group * p.kept + a, depth, col, cut, tile);
          __syncthreads();
        }
        const float* p_rows[kExpandRows];
#pragma unroll
        for (int r = 0; r < kExpandRows; ++r) {
          p_rows[r] = p.value + min(mine + r, end - 1) * p.kept + a;
        }
        add_product(p_rows, depth, tile, octet, cut.cols(), sum);
      }
#pragma unroll
      for (int r = 0; r < kExpandRows; ++r) {
        sink.take(mine + r, col + octet * kOctet, mine + r < end ? count : 0, old[r], sum[r]);
      }
    }
  }
  sink.finish();
}

template <typename D, class Sink>
void run_expand_blocks(const char* name, MatrixView<const D> d, const BlockRows& p,
                       const BlockRows& q, const Sink& sink, GridLimits limits, StreamRef stream) {
  const ExpandCut cut = ExpandCut::of(p, q);
  const Shape shape{static_cast<unsigned>(limits.blocks(cut.items)), kExpandThreads,
                    static_cast<std::size_t>(cut.depth * cut.cols()) * sizeof(float)};
  launch(name, Kernel<expand_blocks<D, Sink>>(), shape, stream, d, p, q, cut, sink);
}

}  // namespace sluiceway::cuda
