// S <- beta S + P^T G Q for block projectors.
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

inline constexpr unsigned kCompressThreads = 128;
// Rows of P_g^T G that a thread sums at once, for eight columns.
inline constexpr int kKeptRows = 8;
inline constexpr int kCoreColumns = 2;  // Columns of S that a thread sums at once.
inline constexpr int kRowsAhead = 4;    // Rows of G that are loaded together.
inline constexpr int kCompressCols = kCompressThreads * kOctet;

// How a grid divides the work: a row group of P, some whole groups of Q, and kKeptRows rows of S.
struct CompressCut {
  std::int64_t tile_cols, col_tiles, row_tiles, items;

  static CompressCut of(const BlockRows& p, const BlockRows& q) {
    const std::int64_t tile_cols =
        q.block >= kCompressCols ? q.block : kCompressCols / q.block * q.block;
    const std::int64_t col_tiles = (q.rows + tile_cols - 1) / tile_cols;
    const std::int64_t row_tiles = (p.kept + kKeptRows - 1) / kKeptRows;
    return {tile_cols, col_tiles, row_tiles, p.groups() * col_tiles * row_tiles};
  }
};

// The work of one item of the grid.
struct CoreTile {
  std::int64_t row, row_end;  // Rows of G.
  std::int64_t s_row;         // First row of S, of `height`.
  std::int64_t p_col;         // Column of P's values that s_row belongs to.
  int height;
};

// Returns where left[a][j] lies. The rows of a column lie side by side, so two loads of 16 bytes
// fetch all eight; a gap lets eight lanes that each store an octet of columns use different banks.
__device__ inline int left_place(int j) { return j * kKeptRows + j / kOctet * 4; }
inline constexpr int kLeftElems = kCompressCols * kKeptRows + kCompressCols / kOctet * 4;

// left = rows of P_g^T times an octet of columns of G; sums go down the rows of G, fused.
template <typename T>
__device__ void sum_left(MatrixView<const T> g, const BlockRows& p, const CoreTile& tile,
                         std::int64_t col, int count, float* left) {
  float sum[kOctet][kKeptRows] = {};
  const float* p_row = p.value + tile.row * p.kept + tile.p_col;
  for (std::int64_t i = tile.row; i < tile.row_end; i += kRowsAhead) {
    const std::int64_t rows = tile.row_end - i;
    Octet<T> g_rows[kRowsAhead];
    load_octets(g.row(i) + col, g.stride, rows, count, g_rows);
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r, p_row += p.kept) {
      if (r >= rows) break;
      float x[kOctet];
      values_of(g_rows[r], x);
#pragma unroll
      for (int a = 0; a < kKeptRows; ++a) {
        const float factor = a < tile.height ? __ldg(p_row + a) : 0.0F;
#pragma unroll
        for (int k = 0; k < kOctet; ++k) sum[k][a] = fmaf(factor, x[k], sum[k][a]);
      }
    }
  }
  const int first = static_cast<int>(threadIdx.x) * kOctet;
#pragma unroll
  for (int k = 0; k < kOctet; ++k) {
    auto* const to = reinterpret_cast<float4*>(left + left_place(first + k));
    const float4 lower{sum[k][0], sum[k][1], sum[k][2], sum[k][3]};
    const float4 upper{sum[k][4], sum[k][5], sum[k][6], sum[k][7]};
    to[0] = lower;
    to[1] = upper;
  }
}

// Columns c of a block of S that one thread sums: each load of the left product serves both.
struct CoreColumns {
  float* s;            // S[tile's first row][first column].
  const float* q;      // Q[first row of the group here][first column].
  std::int64_t apart;  // Distance between the two.
  int count;
};

// S[a][c] = beta S[a][c] + left[a][j] Q[j][c], summed over the columns j of one group of Q, for all
// rows a of the tile. A beta of zero overwrites S, even a NaN.
__device__ inline void add_core_columns(const CoreColumns& to, std::int64_t stride, float beta,
                                        int height, const float* left, int j, int j_end,
                                        std::int64_t q_stride) {
  float sum[kCoreColumns][kKeptRows];
#pragma unroll
  for (int u = 0; u < kCoreColumns; ++u) {
#pragma unroll
    for (int a = 0; a < kKeptRows; ++a) {
      const bool old = u < to.count && a < height && beta != 0.0F;
      sum[u][a] = old ? __fmul_rn(beta, to.s[a * stride + u * to.apart]) : 0.0F;
    }
  }
  const float* q_row = to.q;
#pragma unroll 4
  for (; j < j_end; ++j, q_row += q_stride) {
    const auto* const from = reinterpret_cast<const float4*>(left + left_place(j));
    const float4 x = from[0], y = from[1];
#pragma unroll
    for (int u = 0; u < kCoreColumns; ++u) {
      const float factor = u < to.count ? __ldg(q_row + u * to.apart) : 0.0F;
      sum[u][0] = fmaf(x.x, factor, sum[u][0]);
      sum[u][1] = fmaf(x.y, factor, sum[u][1]);
      sum[u][2] = fmaf(x.z, factor, sum[u][2]);
      sum[u][3] = fmaf(x.w, factor, sum[u][3]);
      sum[u][4] = fmaf(y.x, factor, sum[u][4]);
      sum[u][5] = fmaf(y.y, factor, sum[u][5]);
      sum[u][6] = fmaf(y.z, factor, sum[u][6]);
      sum[u][7] = fmaf(y.w, factor, sum[u][7]);
    }
  }
#pragma unroll
  for (int u = 0; u < kCoreColumns; ++u) {
#pragma unroll
    for (int a = 0; a < kKeptRows; ++a) {
      if (u < to.count && a < height) to.s[a * stride + u * to.apart] = sum[u][a];
    }
  }
}

// Adds to blocks (g, h) of S for columns [col, end) of G; their left product is in shared memory.
__device__ inline void add_core_blocks(MatrixView<float> s, float beta, const BlockRows& q,
                                       const CoreTile& tile, std::int64_t col, std::int64_t end,
                                       std::int64_t tile_col, const float* left) {
  const std::int64_t first_group = col / q.block, groups = (end - 1) / q.block + 1 - first_group;
  const auto apart = static_cast<int>((q.kept + kCoreColumns - 1) / kCoreColumns);
  for (int e = static_cast<int>(threadIdx.x); e < apart * groups; e += blockDim.x) {
    const auto c = e % apart;
    const std::int64_t h = first_group + e / apart;
    const std::int64_t kept = h + 1 == q.groups() ? q.last_kept : q.kept;
    if (c >= kept) continue;
    const std::int64_t j = max(h * q.block, col), j_end = min((h + 1) * q.block, end);
    // A group wider than the tile comes in pieces; only the first starts with beta S.
    const float scale = max(h * q.block, tile_col) == j ? beta : 1.0F;
    const CoreColumns to{s.row(tile.s_row) + h * q.kept + c, q.value + j * q.kept + c, apart,
                         c + apart < kept ? kCoreColumns : 1};
    add_core_columns(to, s.stride, scale, tile.height, left, static_cast<int>(j - col),
                     static_cast<int>(j_end - col), q.kept);
  }
}

// One thread block sums each block (g, h) of S, rows of G first. No two thread blocks add to the
// same element, so the order depends on the shapes alone. Loads: octets of G, 16 bytes a lane for a
// 16-bit type, up to 2 KiB of contiguous elements of a row, four rows at once; P by whole warps at
// one address; contiguous kept columns of Q from the caches. Shared memory: 34 KiB of P_g^T G, in
// accesses of 16 bytes. G comes from memory once; with more than 8 kept columns, neighbouring
// blocks read it again from the second-level cache. Roof: m n sizeof(T) bytes; 2 k m (n + dn) flop,
// which limit first above k = 12 or so.
template <typename T>
__global__ void compress_blocks(MatrixView<float> s, float beta, MatrixView<const T> g, BlockRows p,
                                BlockRows q, CompressCut cut) {
  auto* const left = dynamic_shared<float>();
  for (std::int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const std::int64_t row_tile = item % cut.row_tiles;
    const std::int64_t tile_col = item / cut.row_tiles % cut.col_tiles * cut.tile_cols;
    const std::int64_t group = item / cut.row_tiles / cut.col_tiles;
    const std::int64_t kept = group + 1 == p.groups() ? p.last_kept : p.kept;
    const std::int64_t p_col = row_tile * kKeptRows;
    const int height = octet_count(p_col, kept);
    if (height == 0) continue;  // The same for all threads: the last group may keep fewer rows.
    const CoreTile tile{group * p.block, min((group + 1) * p.block, p.rows), group * p.kept + p_col,
                        p_col, height};
    const std::int64_t tile_end = min(tile_col + cut.tile_cols, g.cols);
    for (std::int64_t col = tile_col; col < tile_end; col += kCompressCols) {
      const std::int64_t end = min(col + kCompressCols, tile_end);
      const std::int64_t mine = col + threadIdx.x * kOctet;
      __syncthreads();  // Until all have read the previous columns.
      sum_left(g, p, tile, mine, octet_count(mine, end), left);
      __syncthreads();
      add_core_blocks(s, beta, q, tile, col, end, tile_col, left);
    }
  }
}

template <typename T>
void run_compress_blocks(MatrixView<float> s, float beta, MatrixView<const T> g, const BlockRows& p,
                         const BlockRows& q, StreamRef stream) {
  const CompressCut cut = CompressCut::of(p, q);
  const Shape shape{GridLimits().blocks(cut.items), kCompressThreads, kLeftElems * sizeof(float)};
  launch("compress", Kernel<compress_blocks<T>>(), shape, stream, s, beta, g, p, q, cut);
}

}  // namespace sluiceway::cuda
